"""The codec `delta` in compiled code: pixels predicted from their neighbours, and differences in fixed codes."""
