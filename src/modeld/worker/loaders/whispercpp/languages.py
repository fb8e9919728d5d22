"""The languages of whisper: codes, and the English names that a transcript calls them by."""

from __future__ import annotations

_TABLE = """
af afrikaans, am amharic, ar arabic, as assamese, az azerbaijani, ba bashkir, be belarusian, bg bulgarian,
bn bengali, bo tibetan, br breton, bs bosnian, ca catalan, cs czech, cy welsh, da danish, de german, el greek,
en english, es spanish, et estonian, eu basque, fa persian, fi finnish, fo faroese, fr french, gl galician,
gu gujarati, ha hausa, haw hawaiian, he hebrew, hi hindi, hr croatian, ht haitian creole, hu hungarian,
hy armenian, id indonesian, is icelandic, it italian, ja japanese, jw javanese, ka georgian, kk kazakh,
km khmer, kn kannada, ko korean, la latin, lb luxembourgish, ln lingala, lo lao, lt lithuanian, lv latvian,
mg malagasy, mi maori, mk macedonian, ml malayalam, mn mongolian, mr marathi, ms malay, mt maltese,
my myanmar,
ne nepali, nl dutch, nn nynorsk, no norwegian, oc occitan, pa punjabi, pl polish, ps pashto, pt portuguese,
ro romanian, ru russian, sa sanskrit, sd sindhi, si sinhala, sk slovak, sl slovenian, sn shona, so somali,
sq albanian, sr serbian, su sundanese, sv swedish, sw swahili, ta tamil, te telugu, tg tajik, th thai,
tk turkmen, tl tagalog, tr turkish, tt tatar, uk ukrainian, ur urdu, uz uzbek, vi vietnamese, yi yiddish,
yo yoruba, yue cantonese, zh chinese
"""

NAMES: dict[str, str] = {
    code: name
    for code, _, name in (entry.strip().partition(" ") for entry in _TABLE.replace("\n", " ").split(","))
}
"""Name by code; "yue" came with the third large model."""

_CODES = {name: code for code, name in NAMES.items()} | {"jv": "jw", "nb": "no"}

UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "km", "bo", "yue"})
"""Languages that put no spaces between words."""


def code(language: str) -> str | None:
    """Return whisper's code for a code ("de"), a code with a region ("de-AT") or a name ("German")."""
    asked = language.strip().lower()
    short = asked.replace("_", "-").partition("-")[0]
    for known in (asked, short):
        if known in NAMES:
            return known
        if known in _CODES:
            return _CODES[known]
    return None
