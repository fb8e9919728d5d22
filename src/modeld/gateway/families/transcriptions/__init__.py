"""Recordings to text: transcriptions and translations."""
