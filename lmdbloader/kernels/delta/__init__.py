"""The codec `delta` in compiled code: pixels predicted from their neighbors, and differences in fixed codes."""
