"""From what a configuration names as a model to files on this disk, and to the memory they will take.

`refs` and `resolve` find files, and `choose` which of a repository's; `fetch` gets those in packages, `pull`
those at a hub, and `built` makes models from packages' weights; each is a program, which `child` runs.

`inspect` reads what one model's files say of themselves, and `listing` what all models in a tree of folders
are (`walk` finds them, `entry` is one of them, `listing_cache` remembers); `checksums` says what their files'
bytes are. `shelf` and `removal` bring models into the cache and out of it. GGUF files are read by a program
(`gguf`, with `header` and `window`), which `reading` runs; `about` and `template` say what a file is,
`architecture` what it means for memory. `safetensors`, `folders` and `ggml` read the other formats.

`estimate` works out bytes from that.
"""
