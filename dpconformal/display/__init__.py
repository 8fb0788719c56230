"""What a person sees: text that is not obeyed. Figures and tables for the terminal have a file each, loaded late."""

import unicodedata

_ACTS = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of characters that act, and are not seen


def visible(text: str) -> str:
    r"""
    Write out the characters of a text that a terminal would obey.

    Returns: The same with escape sequences, changes of direction and the like written as ``\x1b``. Ends of lines stay.
    """
    if text.isprintable():
        return text
    return "".join(repr(sign)[1:-1] if sign != "\n" and unicodedata.category(sign) in _ACTS else sign for sign in text)
