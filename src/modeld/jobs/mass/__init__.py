"""The paths of MASS's llama.cpp gateway: its clients submit and poll here as they do there."""
