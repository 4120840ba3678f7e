"""Image files to pixels and back: one module for each kind of file, and the policies that hold for all."""
