"""Files of callers, as at OpenAI's `/v1/files`: what is known of them in the store, the rest in a folder.

`shelf` is the folder; `routes` the way in over HTTP; `limits` how much there may be.
"""
