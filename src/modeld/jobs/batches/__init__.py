"""Batches, as at OpenAI's `/v1/batches`: a file of requests in, one of answers out, over the queue of jobs.

`scan` checks the input; each line of it is then an item of one job, which `lines` does; `answers` writes the
output; `leading` takes a batch from one to the next and through restarts; `keeper` has all of them; `routes`
is the way in.
"""
