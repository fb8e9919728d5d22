"""Numbers as English words: a lexicon has no digits, and the engine would leave them out in silence."""

from __future__ import annotations

import re
import unicodedata

_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"),
    *("twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_LARGE = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (10**3, "thousand"))
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_MONEY = {"$": ("dollar", "cent"), "€": ("euro", "cent"), "£": ("pound", "pence")}

_NUMBER = re.compile(
    r"(?P<minus>(?<!\w)[-−](?=[$€£]?[0-9]))?(?P<money>[$€£])?"
    r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.(?P<part>[0-9]+))?"
    r"(?:(?P<ordinal>st|nd|rd|th)\b|(?P<percent>\s?%)|(?P<large>\s(?:thousand|million|billion|trillion)\b))?"
)
_MOST_DIGITS = 15
"""Longer ones are no quantities: they are read digit by digit."""


_SIGNS = {"&": " and ", "%": " percent ", "@": " at ", "+": " plus ", "=": " equals "}
_SILENT = re.compile(r"[^\w\s.,!?;:'—–-]|_")


def english(text: str) -> str:
    """Return an English text with all in words that can be read, and without the signs that cannot.

    The engine takes a bracket or a quote for a part of the word beside it, and leaves that word out.
    """
    text = spelled(unicodedata.normalize("NFKC", text))
    for sign, words in _SIGNS.items():
        text = text.replace(sign, words)
    return _SILENT.sub(" ", text)


def spelled(text: str) -> str:
    """Return an English text with its numbers, amounts of money, percentages and ordinals as words."""
    return _NUMBER.sub(lambda found: _apart(found, _words(found)), text)


def _apart(found: re.Match[str], words: str) -> str:
    """Put blanks between words and the letters that stood beside the digits, as in "a4"."""
    text = found.string
    before = " " if found.start() and text[found.start() - 1].isalnum() else ""
    after = " " if found.end() < len(text) and text[found.end()].isalnum() else ""
    return f"{before}{words}{after}"


def _words(found: re.Match[str]) -> str:
    whole, part = found["whole"].replace(",", ""), found["part"]
    words = "minus " if found["minus"] else ""
    if money := found["money"]:
        return words + _money(_MONEY[money], whole, part, (found["large"] or "").strip())
    if part is not None:
        words += f"{_cardinal(whole)} point {_digits(part)}"
    elif found["ordinal"]:
        words += _ordinal(whole)
    elif len(whole) == 4 and "," not in found["whole"] and not (found["percent"] or found["large"]):
        words += _year(int(whole)) or _cardinal(whole)
    else:
        words += _cardinal(whole)
    if found["part"] is not None and found["ordinal"]:
        words += f" {found['ordinal']}"
    return words + (" percent" if found["percent"] else "") + (found["large"] or "")


def _money(names: tuple[str, str], whole: str, part: str | None, large: str) -> str:
    unit, small = names
    if large or (part is not None and len(part) != 2):
        amount = _cardinal(whole) + (f" point {_digits(part)}" if part else "")
        return " ".join(word for word in (amount, large, f"{unit}s") if word)
    words = f"{_cardinal(whole)} {unit}{'' if whole == '1' else 's'}"
    if part is not None and int(part):
        small = small if small == "pence" or part == "01" else f"{small}s"
        words += f" and {_cardinal(str(int(part)))} {small}"
    return words


def _cardinal(digits: str) -> str:
    if len(digits) > _MOST_DIGITS or (digits[0] == "0" and len(digits) > 1):
        return _digits(digits)
    return " ".join(_below(int(digits))) or _ONES[0]


def _below(number: int) -> list[str]:
    words: list[str] = []
    for size, name in _LARGE:
        if number >= size:
            words += [*_below(number // size), name]
            number %= size
    if number >= 100:
        words += [_ONES[number // 100], "hundred"]
        number %= 100
    if number >= 20:
        words.append(_TENS[number // 10])
        number %= 10
    if number:
        words.append(_ONES[number])
    return words


def _ordinal(digits: str) -> str:
    *before, last = _cardinal(digits).split()
    last = f"{last[:-1]}ieth" if last.endswith("y") else _ORDINALS.get(last, f"{last}th")
    return " ".join((*before, last))


def _year(number: int) -> str:
    """Return a number of four digits as years are read, "" for one that is not read so."""
    century, rest = divmod(number, 100)
    if not (11 <= century <= 19 or (century == 20 and rest >= 10)):
        return ""
    if rest == 0:
        tail = "hundred"
    elif rest < 10:
        tail = f"oh {_ONES[rest]}"
    else:
        tail = " ".join(_below(rest))
    return f"{' '.join(_below(century))} {tail}"


def _digits(digits: str) -> str:
    return " ".join(_ONES[int(digit)] for digit in digits)
