"""The corpora: readers on toy files, the tokeniser, the generated numbers and dates, and the corpora themselves."""

from __future__ import annotations

import gzip
import os
import random
import re
from pathlib import Path

import pytest

from sparsegen.experiments.seq2seq.corpora import CORPORA, load_corpus
from sparsegen.experiments.seq2seq.splits import Split, read_parallel

MULTI30K = CORPORA["multi30k-fr-en"].files


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8", newline="")
    return path


def write_multi30k(folder, end="", mark="x"):
    for file in MULTI30K:
        part, language = file.split(".")[1], file[-2:]
        write(folder / (file + end), "".join(f"{mark} {part} {language} {i}\n" for i in range(3)))
    return folder


# Splits


def test_a_split_of_unequal_sides_is_refused_with_both_counts():
    with pytest.raises(ValueError, match=r"a split must be of as many .*, got 2 sources and 1 references\."):
        Split(("a", "b"), (("c",),))


def test_a_source_without_reference_is_refused():
    with pytest.raises(ValueError, match="references row 1 must be at least one line, got none"):
        Split(("a", "b"), (("c",), ()))


# Files


@pytest.mark.parametrize("end", ["", ".gz"])
def test_parallel_files_are_aligned_by_line_and_empty_pairs_counted(tmp_path, end):
    # U+2028 and U+0085 would end a line for str.splitlines; a file from Windows ends lines with \r\n.
    fr = write(tmp_path / f"toy.fr{end}", "\ufeffun\u2028chat\r\n \nun  chien\nvide\nfin")
    en = write(tmp_path / f"toy.en{end}", "a cat\nlost\na dog\n\nend\n")
    split = read_parallel(fr, str(en))
    assert split == Split(("un chat", "un chien", "fin"), (("a cat",), ("a dog",), ("end",)), dropped=2)
    assert read_parallel(fr, en, limit=1).sources == ("un chat",)


def test_unequal_files_are_refused_with_both_names_and_counts(tmp_path):
    fr, en = write(tmp_path / "toy.fr", "un\ndeux\ntrois\n"), write(tmp_path / "toy.en", "one\ntwo\n")
    with pytest.raises(ValueError, match=r"toy\.en must be .* as many lines as .*toy\.fr \(3\), got 2: line 3 has no"):
        read_parallel(fr, en)
    with pytest.raises(ValueError, match=r"toy\.fr .* \(2\), got 3: line 3 has no"):
        read_parallel(en, fr, limit=1)


def test_bad_utf8_is_refused_with_its_line(tmp_path):
    bad = tmp_path / "toy.fr"
    bad.write_bytes("un\ndéjà\n".encode() + "déjà".encode("latin-1"))
    with pytest.raises(ValueError, match=r"toy\.fr, line 3 must be UTF-8 text, got .* at byte 1"):
        read_parallel(bad, bad)


@pytest.mark.parametrize("broken", ["cut", "no gzip", "corrupt"])
def test_broken_gzip_is_refused_with_its_name(tmp_path, broken):
    rng = random.Random(0)
    data = gzip.compress("".join(f"{rng.random()}\n" for _ in range(20000)).encode())
    half = len(data) // 2
    wrong = {"cut": data[:half], "no gzip": b"plain text", "corrupt": data[:half] + b"\0" * 99 + data[half + 99 :]}
    path = tmp_path / "toy.fr.gz"
    path.write_bytes(wrong[broken])
    with pytest.raises(ValueError, match=r"toy\.fr\.gz, line \d+ must be readable gzip data, got") as caught:
        read_parallel(path, path)
    line = int(re.search(r"line (\d+)", str(caught.value))[1])
    assert line == 1 if broken == "no gzip" else 5000 < line <= 20001


@pytest.mark.parametrize("row", ["train\tone", "train\tone\tun\tmore", ""])
def test_a_row_with_other_columns_is_refused_with_file_and_line(tmp_path, row):
    write(tmp_path / "tatoeba.en-fr.tsv", f"train\ta\tb\n{row}\n")
    columns = row.count("\t") + 1
    with pytest.raises(ValueError, match=rf"en-fr\.tsv, line 2 must be 3 columns .*, got {columns}\."):
        load_corpus("tatoeba-fr-en", tmp_path)


def test_each_part_and_side_of_tatoeba_is_where_it_belongs(tmp_path):
    rows = "".join(f"{part}\t{part} it's\t{part} c'est\n" for part in ("test", "train", "valid", "train"))
    write(tmp_path / "tatoeba.en-fr.tsv", rows)
    for name, sides in (("tatoeba-fr-en", ("c' est", "it 's")), ("tatoeba-en-fr", ("it 's", "c' est"))):
        corpus = load_corpus(name, tmp_path, limit=1)
        for part, split in (("train", corpus.train), ("valid", corpus.valid), ("test", corpus.tests["tatoeba"])):
            assert split == Split((f"{part} {sides[0]}",), ((f"{part} {sides[1]}",),))


def test_a_row_of_an_unknown_part_is_refused(tmp_path):
    write(tmp_path / "tatoeba.en-fr.tsv", "train\ta\tb\ndev\ta\tb\n")
    with pytest.raises(ValueError, match=r"line 2 must be of train or valid or test, got 'dev'"):
        load_corpus("tatoeba-fr-en", tmp_path)


@pytest.mark.parametrize("inside", ["", "translation"])
@pytest.mark.parametrize("end", ["", ".gz"])
def test_the_folder_is_the_argument_then_the_variable_then_data(tmp_path, monkeypatch, inside, end):
    here = tmp_path / "here"
    roots = [tmp_path / "asked", tmp_path / "variable", here / "data"]
    for i, root in enumerate(roots):
        write_multi30k(root / inside, end, mark=str(i))
    monkeypatch.chdir(here)

    def found(folder=None):
        return int(load_corpus("multi30k-fr-en", folder).train.sources[0][0])

    monkeypatch.setenv("SPARSEGEN_DATA", str(roots[1]))
    assert found(str(roots[0])) == 0
    assert found() == 1
    monkeypatch.delenv("SPARSEGEN_DATA")
    assert found() == 2


def test_each_part_and_side_of_multi30k_is_where_it_belongs(tmp_path):
    for name, sides in (("multi30k-fr-en", ("fr", "en")), ("multi30k-en-fr", ("en", "fr"))):
        corpus = load_corpus(name, write_multi30k(tmp_path), limit=2)
        assert (corpus.name, corpus.task, len(corpus.train), len(corpus.valid)) == (name, "translation", 2, 3)
        assert list(corpus.tests) == ["test_2016_flickr", "test_2017_flickr"]
        parts = {"train": corpus.train, "val": corpus.valid, **corpus.tests}
        for part, split in parts.items():
            assert (split.sources[1], split.targets[1]) == tuple(f"x {part} {side} 1" for side in sides)


def test_a_missing_corpus_says_which_files_where_it_looked_and_where_to_get_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPARSEGEN_DATA", raising=False)
    write_multi30k(tmp_path / "data")
    (tmp_path / "data" / MULTI30K[3]).unlink()
    with pytest.raises(FileNotFoundError) as caught:
        load_corpus("multi30k-en-fr")
    places = ("data", "data/translation")
    for part in ("'multi30k-en-fr'", MULTI30K[3], "SPARSEGEN_DATA", "multi30k/dataset", " or ".join(places)):
        assert part in str(caught.value)
    assert MULTI30K[0] not in str(caught.value)  # it is there


def test_names_and_limits_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match=r"name must be one of 'multi30k-fr-en', .*'acl', got 'wmt'"):
        load_corpus("wmt")
    for limit in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="limit must be an integer at least 1"):
            load_corpus("numbers-fr-en", limit=limit)


def test_summaries_are_brought_to_one_form(tmp_path):
    write(tmp_path / "gigaword.train10k.tsv", "<unk> lost #.# percent\tloss of <unk>\na\tb\n")
    write(tmp_path / "gigaword.valid1k.tsv", "a\tb\n")
    write(tmp_path / "gigaword.test1951.tsv", "UNK\tUNK wins\n")
    refs = 'Tom\'s 12% won.\t"Big" (old) U.S.\tC\t\n'
    for year in (2003, 2004):
        write(tmp_path / f"duc{year}.tsv", f"in {year} `` he '' won\t{refs}")
    corpus = load_corpus("gigaword", tmp_path, limit=1)
    assert corpus.task == "summarization"
    assert corpus.train == Split(("<unk> lost #.# percent",), (("loss of <unk>",),))
    assert corpus.tests["gigaword"] == Split(("<unk>",), (("<unk> wins",),))
    assert corpus.tests["duc2003"] == corpus.tests["duc2004"]
    assert corpus.tests["duc2003"].sources == ("in #### `` he '' won",)
    assert corpus.tests["duc2003"].references == (("tom 's ## % won .", "`` big '' -lrb- old -rrb- u.s.", "c"),)


def test_reuters_has_its_own_test_and_those_of_gigaword(tmp_path):
    rows = "".join(f'{part}\t7\tthe " {part} " ( 3 )\thead {part}\n' for part in ("test", "train", "valid"))
    write(tmp_path / "summarization" / "reuters21578.lead-headline.tsv", rows)
    write(tmp_path / "summarization" / "gigaword.test1951.tsv", "a\tb\n")
    for year in (2003, 2004):
        write(tmp_path / "summarization" / f"duc{year}.tsv", "a\tb\tc\td\te\n")
    corpus = load_corpus("reuters", tmp_path)
    assert list(corpus.tests) == ["reuters", "gigaword", "duc2003", "duc2004"]
    for part, split in (("train", corpus.train), ("valid", corpus.valid), ("test", corpus.tests["reuters"])):
        assert split == Split((f"the `` {part} '' -lrb- # -rrb-",), ((f"head {part}",),))


# The corpora themselves

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(os.environ.get("SPARSEGEN_DATA") or ROOT / "data")

HEADLINES = {"gigaword": 1951, "duc2003": 624, "duc2004": 500}
FLICKR = {"test_2016_flickr": 1000, "test_2017_flickr": 1000}
# training pairs, all and as loaded here; validation pairs; test pairs
PUBLISHED = {
    "multi30k-fr-en": (None, 29000, 1014, FLICKR),
    "multi30k-en-fr": (50, 50, 1014, FLICKR),
    "tatoeba-fr-en": (500, 500, 5048, {"tatoeba": 4916}),
    "gigaword": (None, 10000, 1000, HEADLINES),
    "reuters": (None, 13500, 775, {"reuters": 757, **HEADLINES}),
    "acl": (500, 500, 1764, {"acl": 1669}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_corpora_have_their_sizes_and_are_words_with_single_spaces(name):
    limit, n_train, n_valid, tests = PUBLISHED[name]
    try:
        corpus = load_corpus(name, DATA, limit=limit)
    except FileNotFoundError:
        pytest.skip("the data are not here: set SPARSEGEN_DATA to their folder")
    assert (len(corpus.train), len(corpus.valid)) == (n_train, n_valid)
    assert {test: len(split) for test, split in corpus.tests.items()} == tests
    for split in (corpus.train, corpus.valid, *corpus.tests.values()):
        assert split.dropped == 0
        for line in (*split.sources, *(line for lines in split.references for line in lines)):
            assert line == " ".join(line.split())
            assert line == line.lower()
            assert "&apos;" not in line
    for test in set(tests) & {"duc2003", "duc2004"}:
        assert {len(lines) for lines in corpus.tests[test].references} == {4}
