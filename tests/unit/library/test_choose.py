from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.library.choose import PREFERENCE, Choice, NoClearChoice, RepoFile, choose, words_for

QUANTS = [
    RepoFile("README.md", 100),
    RepoFile("m-Q4_K_M.gguf", 4_700_000_000),
    RepoFile("m-Q4_K_S.gguf", 4_400_000_000),
    RepoFile("m-IQ4_K_M.gguf", 4_000_000_000),
    RepoFile("m-Q8_0-00001-of-00002.gguf", 5_000_000_000),
    RepoFile("m-Q8_0-00002-of-00002.gguf", 3_000_000_000),
    RepoFile("BF16/m-BF16-00001-of-00002.gguf", 9_000_000_000),
    RepoFile("BF16/m-BF16-00002-of-00002.gguf", 9_000_000_000),
    RepoFile("mmproj-F16.gguf", 900_000_000),
    RepoFile("mmproj-F32.gguf", 1_800_000_000),
    RepoFile("m.imatrix.gguf", 5_000_000),
]


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("*Q4_K_M.gguf", None),
        ("*-Q4_K_M.gguf", ["m-Q4_K_M.gguf"]),
        ("m-Q4_K_M.gguf", ["m-Q4_K_M.gguf"]),
        ("Q4_K_M", ["m-Q4_K_M.gguf"]),
        ("q4_k_s", ["m-Q4_K_S.gguf"]),
        ("iq4_k_m", ["m-IQ4_K_M.gguf"]),
        ("Q4_K", None),
        ("Q8_0", ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]),
        ("*Q8_0*", ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]),
        ("m-Q8_0-00002-of-00002.gguf", ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]),
        ("BF16/*", ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"]),
        ("m-BF16*.gguf", ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"]),
        ("bf16", ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"]),
        ("*.gguf", None),
        ("mmproj-F16.gguf", None),
        ("mmproj*", None),
        ("*.imatrix.gguf", None),
        ("*.safetensors", None),
        ("README.md", None),
    ],
)
def test_one_of_many_quantisations(glob: str, names: list[str] | None) -> None:
    """A pattern, a name or a quantisation chooses one model with all its pieces, or there is an error."""
    if names is None:
        with pytest.raises(NoClearChoice):
            choose(QUANTS, glob, what="org/repo")
        return
    found = choose(QUANTS, glob, what="org/repo")
    assert [file.name for file in found.files] == names
    assert found.projector == RepoFile("mmproj-F16.gguf", 900_000_000)
    assert found.form == "gguf"


def test_the_error_lists_what_there_is() -> None:
    """Each candidate stands there in the form in which it is asked for, with its size."""
    with pytest.raises(NoClearChoice) as caught:
        choose(QUANTS, what="org/repo")
    assert str(caught.value) == (
        "org/repo holds 5 models; choose one: org/repo:BF16/m-BF16-00001-of-00002.gguf (18.00 GB), "
        "org/repo:m-IQ4_K_M.gguf (4.00 GB), org/repo:m-Q4_K_M.gguf (4.70 GB), "
        "org/repo:m-Q4_K_S.gguf (4.40 GB), "
        "org/repo:m-Q8_0-00001-of-00002.gguf (8.00 GB)"
    )
    assert [each.size for each in caught.value.candidates] == [18e9, 4e9, 4.7e9, 4.4e9, 8e9]
    for glob, words in {
        "*Q4_K_[MS].gguf": "holds 3 models that fit '*Q4_K_[MS].gguf'; choose one: org/repo:m-IQ4",
        "Q5_0": "nothing there fits 'Q5_0'; choose one: org/repo:BF16/m",
        "mmproj-F16.gguf": "names a projector, which serves only beside a model; choose one",
    }.items():
        with pytest.raises(NoClearChoice, match=re.escape(words)):
            choose(QUANTS, glob, what="org/repo")
    with pytest.raises(NoClearChoice, match=r"holds no model that is known here; it has a\.txt$"):
        choose([RepoFile("a.txt")], what="org/repo")
    with pytest.raises(NoClearChoice, match=r"and 30 more$"):
        choose([RepoFile(f"m{number}.gguf") for number in range(50)], what="org/repo")


def test_a_preference_decides_only_when_it_is_stated() -> None:
    """Without one there is no silent choice; with one the first quantisation that fits a single model."""
    assert choose(QUANTS, what="r", prefer=PREFERENCE).name == "m-Q4_K_M.gguf"
    assert choose(QUANTS, what="r", prefer=["Q2_K", "q8_0"]).name == "m-Q8_0-00001-of-00002.gguf"
    assert choose(QUANTS, "*Q4_K_S*", what="r", prefer=PREFERENCE).name == "m-Q4_K_S.gguf"
    with pytest.raises(NoClearChoice):
        choose(QUANTS, what="r", prefer=["Q2_K"])
    with pytest.raises(NoClearChoice):
        choose([RepoFile("a-Q4_K_M.gguf"), RepoFile("b-Q4_K_M.gguf")], what="r", prefer=PREFERENCE)


def test_a_repository_that_is_a_model() -> None:
    """Of a folder with a config all that is needed is chosen, and nothing twice."""
    files = [
        *("config.json", "tokenizer.json", "README.md", ".gitattributes", "1_Pooling/config.json"),
        *("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "consolidated.safetensors"),
        *(
            "pytorch_model.bin",
            "onnx/model.onnx",
            "original/consolidated.00.pth",
            "model.onnx",
            "tf_model.h5",
        ),
    ]
    found = choose(map(RepoFile, files), what="r")
    assert found.form == "folder"
    assert found.name == ""
    assert [file.name for file in found.files] == [
        *("1_Pooling/config.json", "README.md", "config.json"),
        *("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "tokenizer.json"),
    ]
    with pytest.raises(NoClearChoice, match=r"has 1 of the 2 pieces of model-00002-of-00002\.safetensors"):
        choose([RepoFile(name) for name in files if "00001" not in name], what="r")
    pipeline = [
        *("model_index.json", "unet/x.safetensors", "unet/x.fp16.safetensors", "unet/config.json"),
        *("sd_xl_base.safetensors", "vae/y.bin"),
    ]
    assert [file.name for file in choose(map(RepoFile, pipeline), what="r").files] == [
        *("model_index.json", "unet/config.json", "unet/x.safetensors"),
    ]
    only_bin = choose(map(RepoFile, ["config.json", "pytorch_model.bin"]), what="r")
    assert [file.name for file in only_bin.files] == ["config.json", "pytorch_model.bin"]


def test_gguf_beside_a_folder() -> None:
    """Where both are, GGUF files are what the repository is for, unless the other form is asked for."""
    files = [RepoFile(name) for name in ("config.json", "model.safetensors", "m-Q4_0.gguf")]
    assert choose(files, what="r").name == "m-Q4_0.gguf"
    assert choose(files, what="r", form="folder").form == "folder"
    with pytest.raises(NoClearChoice):
        choose(files[:2], what="r", form="gguf")


def test_other_single_files() -> None:
    """A file of weights for pictures or speech is chosen by its name, or as the only one."""
    whisper = [RepoFile("ggml-base.bin", 1), RepoFile("ggml-tiny.bin", 1), RepoFile("other.bin")]
    assert choose(whisper, "ggml-tiny.bin", what="r").files == (RepoFile("ggml-tiny.bin", 1),)
    assert choose(whisper[1:], what="r").form == "file"
    with pytest.raises(NoClearChoice, match=r"holds 2 models; choose one: r:ggml-base\.bin"):
        choose(whisper, what="r")
    assert choose([RepoFile("sdxl.safetensors"), RepoFile("x.md")], what="r").name == "sdxl.safetensors"


def test_the_projector_of_a_model_in_a_folder() -> None:
    """The one with the model's name goes first, then one in the same folder, then one at the top."""
    files = [RepoFile(name) for name in ("a/m.gguf", "mmproj-f16.gguf", "b/m.gguf", "b/mmproj-f32.gguf")]
    assert choose(files, "a/m.gguf", what="r").projector == RepoFile("mmproj-f16.gguf")
    assert choose(files, "b/m.gguf", what="r").projector == RepoFile("b/mmproj-f32.gguf")
    own = [RepoFile(name) for name in ("x.gguf", "y.gguf", "mmproj-y.gguf", "mmproj-f16.gguf")]
    assert choose(own, "y.gguf", what="r").projector == RepoFile("mmproj-y.gguf")


@pytest.mark.parametrize(
    "name", ["../x.gguf", "/x.gguf", "a/../../x.gguf", "a\\x.gguf", "a//x.gguf", "x\n.gguf"]
)
def test_names_that_lead_elsewhere_are_passed_over(name: str) -> None:
    """A file that would not lie below the model's folder is never chosen, not even by its name."""
    assert choose([RepoFile(name), RepoFile("m.gguf")], what="r").name == "m.gguf"
    with pytest.raises(NoClearChoice):
        choose([RepoFile(name)], name, what="r")


def test_sizes_in_words() -> None:
    """Sizes are told as people read them."""
    assert [words_for(size) for size in (None, 0, 98_362_432, 4_700_000_000)] == [
        *("size unknown", "0.0 MB", "98.4 MB", "4.70 GB")
    ]


STEMS = st.sampled_from(["m-Q4_K_M", "m-Q4_K_S", "m-IQ4_XS", "sub/m-Q8_0", "n-F16", "n"])
WHOLE = STEMS.map(lambda stem: [f"{stem}.gguf"])
SPLIT = st.builds(
    lambda stem, count, gone: [
        f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1) if number != gone
    ],
    STEMS,
    st.integers(1, 4),
    st.integers(0, 4),
)
OTHER = st.sampled_from(
    [
        ["mmproj-f16.gguf"],
        ["sub/MMPROJ-x.gguf"],
        ["README.md"],
        [".x.gguf"],
        ["imatrix.gguf"],
        ["config.json"],
    ]
)
REPOSITORIES = st.lists(st.one_of(WHOLE, SPLIT, OTHER), max_size=8).map(
    lambda groups: [RepoFile(name, 1) for group in groups for name in group]
)
GLOBS = st.one_of(
    st.none(),
    st.sampled_from(["*", "*.gguf", "Q4_K_M", "*Q4*", "mmproj*", "n", "[", "m-Q4_K_M.gguf", "sub/*"]),
)
PREFER = st.lists(st.sampled_from(["Q4_K_M", "Q8_0", "f16", "IQ4_XS"]), max_size=3)


def outcome(files: Sequence[RepoFile], glob: str | None, prefer: Sequence[str]) -> Choice | str:
    """Return the choice, or the error's words."""
    try:
        return choose(files, glob, what="r", prefer=prefer)
    except NoClearChoice as error:
        return str(error)


@given(REPOSITORIES, GLOBS, PREFER, st.randoms())
def test_a_choice_is_whole_and_never_a_projector(
    files: list[RepoFile],
    glob: str | None,
    prefer: list[str],
    random: st.random.Random,  # type: ignore[name-defined]
) -> None:
    """Whatever is there: a choice is one model with each of its pieces once and in order; nothing else is
    raised; and neither the order of the list nor what is no model changes it.
    """
    found = outcome(files, glob, prefer)
    mixed = list(files)
    random.shuffle(mixed)
    assert outcome(mixed, glob, prefer) == found
    if isinstance(found, str):
        return
    assert outcome([*files, RepoFile("LICENSE", 3)], glob, prefer) == found
    names = [file.name for file in found.files]
    assert set(found.files) <= set(files)
    assert not any("mmproj" in name.lower() or "imatrix" in name for name in names)
    pieces = [re.fullmatch(r"(.+)-(\d{5})-of-(\d{5})\.gguf", name) for name in names]
    if pieces[0]:
        assert [int(piece[2]) for piece in pieces if piece] == list(range(1, int(pieces[0][3]) + 1))
        assert len({piece[1] for piece in pieces if piece}) == 1
    else:
        assert len(names) == 1


@given(REPOSITORIES, GLOBS)
def test_every_candidate_can_be_chosen_by_the_name_it_is_listed_with(
    files: list[RepoFile], glob: str | None
) -> None:
    """What an error offers is a clear choice, unless its pieces are missing in the repository."""
    try:
        choose(files, glob, what="r")
    except NoClearChoice as error:
        for candidate in error.candidates:
            chosen = outcome(files, candidate.name, ())
            assert isinstance(chosen, str) == (chosen != candidate and "pieces of" in str(chosen))
            if isinstance(chosen, Choice):
                assert chosen.files == candidate.files
