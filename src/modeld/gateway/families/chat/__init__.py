"""`/v1/chat/completions`: body to task, events to chunks or one completion."""
