"""Media from strangers, decoded in the worker, so that a decoder's crash costs one model."""
