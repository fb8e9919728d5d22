"""The owner's way in: a 0600 Unix socket that `modeld ctl` speaks to, apart from the public address.

Being able to open the socket is the permission; there are no keys here.
"""
