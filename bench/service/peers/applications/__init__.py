"""Applications that uvicorn loads by name. They import nothing of this project."""
