"""Media of callers, decoded and coded in the worker, so that a decoder's crash costs one model."""
