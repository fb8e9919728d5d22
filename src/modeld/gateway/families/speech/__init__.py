"""`/v1/audio/speech` and `/v1/audio/voices`: text to speech, and the voices that there are for it."""
