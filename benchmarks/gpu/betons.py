"""Makes FFCV's files from the same photographs, where FFCV was built; material.py makes that of pairs."""

from __future__ import annotations

from stage import make, parse_stage


def main() -> None:
    """Write every file that is not there yet; without FFCV say why, and end well."""
    stage = parse_stage("betons", __doc__)
    import ffcv_peer

    reason = ffcv_peer.ffcv_available()
    if reason is not None:
        stage.leave_out("FFCV", reason)
        return
    photos, folder = stage.data / "photos" / "train", stage.data / "ffcv"
    folder.mkdir(exist_ok=True)
    for name, mode, longest in (("raw256", "raw", 256), ("original", "jpg", None)):
        path = folder / f"{name}.beton"

        def write(path=path, mode=mode, longest=longest) -> None:  # type: ignore[no-untyped-def]
            ffcv_peer.write_images(photos, path, mode=mode, max_resolution=longest, workers=stage.cores)

        make(stage, f"{name}.beton", write, [path])


if __name__ == "__main__":
    main()
