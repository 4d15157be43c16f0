"""The synthetic models' tokenizer: byte-level BPE merges trained on a word list of our own, and the vocabulary they make.

Pure Python and integers only, so that the same merges come out on every machine, whatever PYTHONHASHSEED or numpy is.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
END_OF_TURN = "<|im_end|>"

NORMAL, CONTROL_TYPE, USER_DEFINED = 1, 3, 4  # llama_token_type

# Our own list, by kind; a line's weight in the training falls with its place, so the small words come first.
WORDS = """
the a an this that these those
I you he she it we they me him her us them my your his its our their who whom whose which what
and or but so if then else because while until unless though although since when where why how than
of to in on at by for with from into onto over under between among through during before after above below about against
without
is are was were be been being am do does did done have has had having will would can could shall should may might must
not no yes never always often sometimes again also too very quite rather only just even still already yet soon now here
there
all any both each every some few many much more most less least several none other another same such own enough
one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty hundred thousand million first
second third last next
say says said tell told ask asked answer know knew known think thought see saw seen look find found get got give gave
given
go goes went gone come came take took taken make made put set let keep kept hold held bring brought send sent leave left
read write wrote written run ran start stop begin began end open close turn move carry call called name use used try
need want like
work play walk talk speak listen hear heard feel felt meet met stand sit lie lay grow show shown learn teach build built
break fix
buy sell pay cost save spend lose lost win help hope wait stay live die eat drink sleep wake drive ride fly swim sing
draw paint cut
change check choose compare count create delete remove add insert replace update join split sort search match follow
lead reach
allow deny accept refuse agree decide plan prepare finish complete remember forget explain describe mean happen become
remain
good bad better best worse worst great small large big little long short high low deep wide narrow near far early late
old new young
right wrong true false real sure certain clear plain simple hard easy fast slow quick strong weak heavy light full empty
ready busy
hot cold warm cool dry wet clean dirty dark bright quiet loud soft sharp round flat safe free common special possible
important different
red green blue black white yellow brown grey silver golden
man woman child children boy girl people person family mother father brother sister son daughter friend neighbour king
queen team member
head face eye eyes ear mouth hand hands arm foot feet back heart mind body voice word words letter line page book story
song picture paper
house home room door window wall floor roof table chair bed kitchen garden street road bridge town city village country
world
water river lake sea ocean island mountain hill valley field forest tree leaf flower grass stone sand earth sky sun moon
star cloud rain snow wind storm
day week month year hour minute second morning evening night today tomorrow yesterday Monday Tuesday Wednesday Thursday
Friday Saturday Sunday
January February March April June July August September October November December spring summer autumn winter
bread milk cheese meat fish egg apple salt sugar coffee tea soup dinner lunch breakfast
dog cat horse cow bird sheep mouse bear wolf animal plant
car train bus ship boat plane wheel engine machine tool box bag bottle cup glass knife key lock clock lamp phone camera
radio
school teacher student lesson science music art history law market shop bank office company customer owner manager
worker doctor
money price amount balance account invoice order payment budget currency ledger entry deadline decision summary secret
password
part piece side top bottom middle edge corner center place point way thing kind sort case fact idea reason cause result
problem question example
number size weight length height width depth area level rate time date age half quarter double total average minimum
maximum sum rest
function return value values string error file files code data server client request response message messages user
assistant system token tokens
model cache prompt context window memory state block blocks checkpoint position slot batch prefix store load restore
roll branch park grid
session tool call argument arguments parameter parameters type integer boolean array object index hash limit byte bytes
disk content role
thread process queue event stream cancel resume reply default option config setting version release commit patch merge
review issue report
column row query filter import export module package class method property test assert expect pass fail skip log debug
warning info trace
path folder directory random seed sample temperature rule rules note notes public private access open closed pending
running waiting failed
print self def elif null None True False async await lambda yield raise except finally const var static void
please thanks hello sorry welcome
"""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token texts in GGUF's byte alphabet, their llama types, and the merges (pairs joined by a space), best first."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]

    def ids(self, *tokens: str) -> tuple[int, ...]:
        return tuple(self.tokens.index(token) for token in tokens)


def byte_alphabet() -> tuple[str, ...]:
    """The printable stand-in of each byte 0..255 in byte-level BPE (GPT-2): itself where printable, else 256 upwards."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    stand_in = iter(range(256, 512))
    return tuple(chr(byte) if byte in printable else chr(next(stand_in)) for byte in range(256))


def make_vocabulary(size: int) -> Vocabulary:
    """`size` tokens: bytes, specials, merges, and beyond those pseudo-words that no merge reaches (real vocabularies are larger
    than what a text of ours uses, and the output matrix must have its true height). Raises ValueError when specials do not fit.
    """
    base = [*byte_alphabet(), *CONTROL, *MARKS]
    if size < len(base):
        raise ValueError(f"a vocabulary needs at least {len(base)} tokens, not {size}")
    merges = train_merges(size - len(base))
    tokens = [*base, *("".join(pair) for pair in merges)]
    filler = fillers(set(tokens))
    tokens += [next(filler) for _ in range(size - len(tokens))]
    types = [NORMAL] * 256 + [CONTROL_TYPE] * len(CONTROL) + [USER_DEFINED] * len(MARKS)
    types += [NORMAL] * (size - len(types))
    return Vocabulary(tuple(tokens), tuple(types), tuple(" ".join(pair) for pair in merges))


def fillers(taken: set[str]) -> Iterator[str]:
    """Pronounceable words with a leading space, shortest first: 64, 4096, 262144, … of them."""
    syllables = ["".join(pair) for pair in product("bdfgklmnprstvzhj", "aeio")]
    for length in range(2, 6):
        for parts in product(syllables, repeat=length):
            word = "Ġ" + "".join(parts)
            if word not in taken:
                yield word


def train_merges(most: int) -> list[tuple[str, str]]:
    """Up to `most` merges: the most frequent neighbours first (Sennrich et al. 2016), ties to the smaller pair."""
    words, counts = training_words()
    where: dict[tuple[str, str], set[int]] = defaultdict(set)
    total: Counter[tuple[str, str]] = Counter()
    for number, symbols in enumerate(words):
        for pair in pairwise(symbols):
            where[pair].add(number)
            total[pair] += counts[number]
    merges: list[tuple[str, str]] = []
    while len(merges) < most and total:
        best = min(total, key=lambda pair: (-total[pair], pair))
        merges.append(best)
        for number in sorted(where[best]):
            _replace(words, counts, number, best, where, total)
    return merges


def _replace(
    words: list[list[str]],
    counts: list[int],
    number: int,
    best: tuple[str, str],
    where: dict[tuple[str, str], set[int]],
    total: Counter[tuple[str, str]],
) -> None:
    """Joins `best` in one word and keeps both indexes true."""
    for pair in pairwise(words[number]):
        total[pair] -= counts[number]
        if total[pair] <= 0:
            del total[pair]
        where[pair].discard(number)
    words[number] = join_pair(words[number], best)
    for pair in pairwise(words[number]):
        total[pair] += counts[number]
        where[pair].add(number)


def join_pair(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    """Each non-overlapping occurrence of `pair`, from the left, as one symbol."""
    joined: list[str] = []
    for symbol in symbols:
        if joined and (joined[-1], symbol) == pair:
            joined[-1] += symbol
        else:
            joined.append(symbol)
    return joined


def training_words() -> tuple[list[list[str]], list[int]]:
    """Symbols and weight of each pre-token: words with and without a leading space, capitalised, and blanks."""
    weight: Counter[str] = Counter()
    for place, line in enumerate(WORDS.strip().splitlines()):
        for word in line.split():
            weight["Ġ" + word] += 40_000 // (place + 2)
            weight[word] += 5_000 // (place + 2)
            weight[word.capitalize()] += 2_000 // (place + 2)
    weight.update({"ĊĊ": 20_000, "ĠĠĠĠ": 6_000, "ĠĠĠĠĠĠĠĠ": 3_000})
    return [list(word) for word in weight], list(weight.values())
