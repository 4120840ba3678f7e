"""The codec `delta` in compiled code: pixels predicted from their neighbours, and the differences in Huffman codes."""
