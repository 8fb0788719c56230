"""Output for people: escaped text; figures and terminal tables have a module each, which is imported late."""

import unicodedata

_ACTS = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of characters that act, and are not seen


def visible(text: str) -> str:
    r"""Write what a terminal would obey as ``\x1b``: escapes, changes of direction and the like; no ends of lines."""
    if text.isprintable():
        return text
    return "".join(repr(sign)[1:-1] if sign != "\n" and unicodedata.category(sign) in _ACTS else sign for sign in text)
