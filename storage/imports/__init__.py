"""Import sessions: a namespace's whole content, received part by part, compared, and published by one record."""
