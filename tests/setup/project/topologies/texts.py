def letter(name: str, *, yes: bool) -> str:
    return f"Dear {name}, {'yes' if yes else 'no'}."
