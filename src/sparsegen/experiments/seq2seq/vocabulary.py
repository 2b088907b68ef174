"""Vocabularies: lines to numbers and back, by words or by pieces of words."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sparsegen._table.checks import fail, one_of
from sparsegen._table.extras import missing

PAD, UNK, BOS, EOS = range(4)
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
_SPACE = "\u2581"  # how SentencePiece writes the space before a word


def _shown(ids: Iterable[int], size: int) -> list[int]:
    """Ids up to the end of the sentence, without padding and beginning."""
    kept = []
    for i in ids:
        if not 0 <= (index := int(i)) < size:
            fail(ValueError, "ids", f"between 0 and {size - 1}", index)
        if index == EOS:
            break
        if index not in (PAD, BOS):
            kept.append(index)
    return kept


class WordVocabulary:
    """Words that have numbers; others are unknown.

    Parameters
    ----------
    words : iterable of str
        The words in the order of their numbers, which start after PAD, UNK, BOS and EOS.

    Examples
    --------
    >>> vocabulary = WordVocabulary.build(["a cat", "a dog sees a cat"])
    >>> len(vocabulary), vocabulary.encode("a dog sees a bird")
    (8, [4, 6, 7, 4, 1])
    >>> vocabulary.decode([2, 4, 6, 3, 5])
    'a dog'
    """

    def __init__(self, words: Iterable[str]):
        self._tokens = (*SPECIALS, *words)
        self._ids = {word: i for i, word in enumerate(self._tokens)}
        if len(self._ids) < len(self._tokens):
            twice = next(word for i, word in enumerate(self._tokens) if self._ids[word] != i)
            fail(ValueError, "words", "different from each other and from the special ones", f"{twice!r} twice")
        # A special word that stands in a text must not end or pad the sentence.
        self._ids |= dict.fromkeys(SPECIALS, UNK)

    @classmethod
    def build(cls, lines: Iterable[str], *, min_count: int = 1, max_size: int | None = None) -> WordVocabulary:
        """Take the words of some lines, the most frequent first and equally frequent ones in alphabetical order.

        Parameters
        ----------
        lines : iterable of str
        min_count : int, default 1
            Leave rarer words out.
        max_size : int, optional
            The greatest size, the four special words included.

        >>> len(WordVocabulary.build(["a b b", "c b a"], min_count=2))
        6
        """
        if max_size is not None and max_size <= len(SPECIALS):
            fail(ValueError, "max_size", f"at least {len(SPECIALS) + 1}", max_size)
        counts = Counter(word for line in lines for word in line.split())
        for special in SPECIALS:
            counts.pop(special, None)
        kept = sorted((word for word, n in counts.items() if n >= min_count), key=lambda word: (-counts[word], word))
        return cls(kept if max_size is None else kept[: max_size - len(SPECIALS)])

    def __len__(self) -> int:
        return len(self._tokens)

    def tokens(self, line: str) -> list[str]:
        """The words of a line as they stand there, one for each number of `encode`."""
        return line.split()

    def encode(self, line: str) -> list[int]:
        """Numbers of the words of a line, without beginning and end."""
        return [self._ids.get(word, UNK) for word in line.split()]

    def tokens_of(self, ids: Iterable[int]) -> list[str]:
        """Words of numbers, up to EOS and without PAD and BOS."""
        return [self._tokens[i] for i in _shown(ids, len(self))]

    def decode(self, ids: Iterable[int]) -> str:
        """The line of some numbers, up to EOS and without PAD and BOS."""
        return self.decode_tokens(self.tokens_of(ids))

    def decode_tokens(self, tokens: Sequence[str]) -> str:
        """The line of some words."""
        return " ".join(tokens)

    def state(self) -> dict[str, Any]:
        """What JSON can keep of the vocabulary.

        >>> WordVocabulary(["a"]).state()
        {'kind': 'word', 'words': ['a']}
        """
        return {"kind": "word", "words": list(self._tokens[len(SPECIALS) :])}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> WordVocabulary:
        """The vocabulary whose `state` it is."""
        return cls(state["words"])


class SentencePieceVocabulary:
    """Pieces of words by SentencePiece, so that hardly anything is unknown. Its interface is that of WordVocabulary.

    Text is taken as it is, without normalisation, but spaces become single. The word <unk> of a text is UNK.

    Parameters
    ----------
    model : bytes
        A SentencePiece model with PAD, UNK, BOS and EOS at their numbers; `build` makes one.

    Examples
    --------
    >>> vocabulary = SentencePieceVocabulary.build(["low lower lowest", "new newer newest"], vocab_size=18)
    >>> vocabulary.decode(vocabulary.encode("lower newest"))
    'lower newest'
    """

    def __init__(self, model: bytes):
        self._model = model
        self._processor = _sentencepiece().SentencePieceProcessor(model_proto=model)
        found = tuple(getattr(self._processor, f"{name}_id")() for name in ("pad", "unk", "bos", "eos"))
        if found != (PAD, UNK, BOS, EOS):
            fail(ValueError, "model", "one with pad, unk, bos and eos at 0, 1, 2 and 3", found)

    @classmethod
    def build(cls, lines: Iterable[str], *, vocab_size: int, model_type: str = "unigram") -> SentencePieceVocabulary:
        """Learn the pieces from some lines.

        Parameters
        ----------
        lines : iterable of str
        vocab_size : int
            The size, the four special pieces included.
        model_type : {"unigram", "bpe"}, default "unigram"

        >>> SentencePieceVocabulary.build(["too little text"], vocab_size=500)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: sparsegen: vocab_size must be one this text allows, got 500: ...
        """
        if model_type not in ("unigram", "bpe"):
            fail(ValueError, "model_type", "'unigram' or 'bpe'", repr(model_type))
        texts = [text for line in lines if (text := " ".join(w for w in line.split() if w not in SPECIALS))]
        if not texts:
            fail(ValueError, "lines", "lines with words", "none")
        return cls(_train(texts, vocab_size, model_type))

    def __len__(self) -> int:
        return self._processor.get_piece_size()

    def tokens(self, line: str) -> list[str]:
        """The pieces of a line as they stand there, one for each number of `encode`."""
        return self._encoded(line, str, _SPACE + SPECIALS[UNK])

    def encode(self, line: str) -> list[int]:
        """Numbers of the pieces of a line, without beginning and end."""
        return self._encoded(line, int, UNK)

    def _encoded(self, line: str, kind: type, unknown: Any) -> list[Any]:
        """Pieces or numbers. SentencePiece would take the word <unk> apart, so it sees what stands around it."""
        found: list[Any] = []
        words: list[str] = []
        for word in [*line.split(), None]:
            if word is not None and word not in SPECIALS:
                words.append(word)
                continue
            if words:
                found += self._processor.encode(" ".join(words), out_type=kind)
                words = []
            if word is not None:
                found.append(unknown)
        return found

    def tokens_of(self, ids: Iterable[int]) -> list[str]:
        """Pieces of numbers, up to EOS and without PAD and BOS."""
        return [self._processor.id_to_piece(i) for i in _shown(ids, len(self))]

    def decode(self, ids: Iterable[int]) -> str:
        """The line of some numbers, up to EOS and without PAD and BOS."""
        return self.decode_tokens(self.tokens_of(ids))

    def decode_tokens(self, tokens: Sequence[str]) -> str:
        """The line of some pieces; an unknown one stands as a word of its own."""
        apart = (f" {token} " if token == SPECIALS[UNK] else token for token in tokens)
        return " ".join("".join(apart).replace(_SPACE, " ").split())

    def state(self) -> dict[str, Any]:
        """What JSON can keep of the vocabulary: the model in base64."""
        return {"kind": "sentencepiece", "model": base64.b64encode(self._model).decode("ascii")}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> SentencePieceVocabulary:
        """The vocabulary whose `state` it is."""
        return cls(base64.b64decode(state["model"], validate=True))


def _sentencepiece() -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise missing("a vocabulary of pieces", "sentencepiece", "experiments") from error
    return sentencepiece


def _train(texts: Sequence[str], vocab_size: int, model_type: str) -> bytes:
    """A model, the same each time: one thread, and no sampling of the lines."""
    model = io.BytesIO()
    longest = max(len(text.encode()) for text in texts)
    options: dict[str, Any] = {
        "vocab_size": vocab_size,
        "model_type": model_type,
        "pad_id": PAD,
        "unk_id": UNK,
        "bos_id": BOS,
        "eos_id": EOS,
        "character_coverage": 1.0,
        "normalization_rule_name": "identity",
        "max_sentence_length": longest + 1,  # longer lines would be left out in silence
        "num_threads": 1,
        "minloglevel": 2,
    }
    try:
        _sentencepiece().SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=model, **options)
    except RuntimeError as error:
        if "ocabulary size" not in str(error) and "vocab" not in str(error):
            raise
        reason = " ".join(str(error).split("] ")[-1].split()).rstrip(".")
        fail(ValueError, "vocab_size", "one this text allows", f"{vocab_size}: {reason}")
    return model.getvalue()


KINDS: dict[str, type[WordVocabulary] | type[SentencePieceVocabulary]] = {
    "word": WordVocabulary,
    "sentencepiece": SentencePieceVocabulary,
}


def vocabulary_from_state(state: dict[str, Any]) -> WordVocabulary | SentencePieceVocabulary:
    """The vocabulary whose `state` it is, of either kind.

    >>> vocabulary_from_state(WordVocabulary(["a", "b"]).state()).encode("b a")
    [5, 4]
    """
    if (kind := state.get("kind")) not in KINDS:
        fail(ValueError, "the kind of a vocabulary", one_of(KINDS), repr(kind))
    return KINDS[kind].from_state(state)
