"""Image files to pixels and back: a module for each kind of file, and the policies for all of them."""
