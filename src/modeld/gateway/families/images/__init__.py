"""`/v1/images/…`: generations, edits and variations.

A field is honoured or refused with 400, and never dropped: size, count, seed and format of what comes back
are what was asked for. What decides which is `request`; links to pictures are kept by `gateway.links`.
"""
