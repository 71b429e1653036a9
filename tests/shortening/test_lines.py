"""The ranker of lines: whole lines of the source, in their order, within room, the same in every process."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import re
import subprocess
import sys
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.shortening.lines import (
    Vocabulary,
    choose_lines,
    headings_of,
    looks_like_file,
    names_in,
    readable_part,
    reports_trouble,
    source_lines,
    trouble_lines,
)
from repertory.shortening.pieces import LONG_LINE, pieces_of

_NAMED = st.builds("{}/part_{}.py:{} holds {}".format, st.sampled_from(["lib", "src/app"]), *[st.integers(0, 60)] * 3)
_LINES = st.one_of(
    _NAMED,
    st.builds("{:4}→{}".format, st.integers(1, 999), _NAMED),
    st.sampled_from(["plain words of no use", "permission denied", "", "   ", "}", "x" * 700, '{"a_b":1,' * 90]),
    st.text(alphabet=st.characters(codec="utf-8"), max_size=60),
)
_TEXTS = st.lists(_LINES, max_size=60).map("\n".join)


def known(*texts: str) -> Vocabulary:
    """A vocabulary that has read some results."""
    vocabulary = Vocabulary()
    for iteration, text in enumerate(texts, 1):
        vocabulary.read(iteration, results=[text])
    return vocabulary


@given(text=_TEXTS, room=st.integers(0, 3_000))
def test_chosen_lines_are_whole_lines_of_the_source_in_their_order(text: str, room: int) -> None:
    """Within their room, and none twice; only a line that is longer than the room is cut."""
    lines = source_lines(text)
    chosen = choose_lines(lines, room, known(text, "other_name"))
    rest = iter(lines)
    assert all(line in rest for line in chosen) or (len(chosen) == 1 and chosen[0].endswith("…"))
    assert len({line.strip() for line in chosen}) == len(chosen)
    assert len("\n".join(chosen)) <= room


@given(text=_TEXTS)
def test_the_lines_of_a_source_are_its_own(text: str) -> None:
    """Without gutters, blanks and repeats; what is taken apart loses nothing."""
    lines = source_lines(text)
    assert all(line.strip() and line in text and len(line.splitlines()) == 1 for line in lines)
    assert len({line.strip() for line in lines}) == len(lines)
    told = {line.strip() for line in lines}
    for raw in map(str.rstrip, text.splitlines()):
        assert len(raw) <= LONG_LINE or "→" in raw[:12] or told.issuperset(map(str.strip, pieces_of(raw)))


@pytest.mark.parametrize(
    "text",
    [
        "12:34:56 started\n12:34:57 stopped\n13:00:01 started\n14:02:03 stopped",
        "09:15 call Ann\n10:30 call Ben\n11:45 rest",
        "174\tbranch-a\tclosed\n172\tbranch-b\topen\n170\tbranch-c\topen",
        "id|name\n1|ann\n2|ben\n3|cyd",
        " id | name\n----+------\n  1 | ann\n  2 | ben",
        "100|4|ok\n200|5|bad\n300|6|ok",
        "80: web\n443: tls\n8080: proxy",
        "2026-02-05 latest\n2026-02-06 newest",
        "20260116-hook.md\n20260119-pin.md",
        "404: not found",
        "3:import os\n17:    os.exit()\n94:\tos",
        f"{'7' * 50}: the first\n{'8' * 50}: the second",
    ],
)
def test_a_number_that_counts_no_lines_stays(text: str) -> None:
    """Hours, keys of a table, where a search found something: without them the line would say less, or nothing."""
    assert "".join(source_lines(text)) == text.replace("\n", "")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("     1→import os\n     2→\n     3→os.exit()", ["import os", "os.exit()"]),
        ("7\tseven\n8\teight", ["seven", "eight"]),
        ("12 | let a = b | c;\n13 | a", [" let a = b | c;", " a"]),
        (
            "40-def f():\n41:    g()\n42-\n--\n90-def h():\n91:    i()",
            ["def f():", "    g()", "--", "def h():", "    i()"],
        ),
        ("The file a.py:\n1: import os\n2: os.exit()", ["The file a.py:", " import os", " os.exit()"]),
    ],
)
def test_the_numbers_of_lines_are_no_part_of_them(text: str, lines: list[str]) -> None:
    """Of viewers, and of the lines around a match: they only cost room."""
    assert source_lines(text) == lines


def test_a_long_line_is_split_between_its_words() -> None:
    """Half a path or half a version would name something that is not there."""
    words = [f"package-{number}.{number % 7}.1" for number in range(200)]
    pieces = source_lines("Installed " + " ".join(words))
    assert " ".join(piece.strip() for piece in pieces).split() == ["Installed", *words]
    assert max(map(len, pieces)) <= 400


def test_lines_are_read_as_a_terminal_shows_them() -> None:
    """Without colours, and of a progress bar what stood there in the end; a line that ends with CR and LF is whole."""
    bar = "\r".join(f"{part}%|  | {part}/100 [00:0{part // 20}, {part / 9:.2f}it/s]" for part in range(0, 101, 10))
    coloured = "\x1b[31merror:\x1b[0m \x1b]8;;https://a.example\x1b\\lib/crane_7.py\x1b]8;;\x07 \x1b[1m\x1b[4;5Hfailed"
    text = f"Loading\r\n{bar}\n{coloured}\r\n\x1b[2Kdone"
    assert source_lines(text) == ["Loading", bar.split("\r")[-1], "error: lib/crane_7.py failed", "done"]
    assert source_lines("old\rfile\r") == ["old", "file"]


def test_text_in_a_string_of_json_is_read_as_text() -> None:
    """Many tools return a command's output in one, or what another tool said. A record stays whole, and no word begins
    with an escape's letter.
    """
    code = [f'    {n}\tprint("to {n}\\\\n")  # Für {n}' for n in range(40)]
    result = json.dumps({"output": "\r\n".join(["", *code, ""]), "exit_code": 0})
    assert source_lines(result) == ['{"output": "', *(line.partition("\t")[2] for line in code), '", "exit_code": 0}']
    assert looks_like_file(result)
    rows = [{"id": n, "name": f'the "{n}"', "note": "first\nsecond"} for n in range(40)]
    inner = json.dumps({"content": [{"type": "text", "text": f"Found:\n{json.dumps(rows)}"}]})
    lines = source_lines(json.dumps({"content": [{"type": "text", "text": inner}]}))
    assert lines[0] == '{"content": [{"type": "text", "text": "{"content": [{"type": "text", "text": "Found:'
    assert all(json.dumps(row) in "".join(lines[1:]) for row in rows)
    assert [line[-2:] for line in lines[1:-1]] == ["},"] * len(lines[1:-1])
    assert names_in(readable_part(json.dumps(["The\nFirst\nSecond " * 40]), strings=True)) == set()


@pytest.mark.parametrize(
    "said", [r"\begin{note} \nu and \rho, in C:\new\table. ", "half a character \ud83d\0, ", "😀 and 合同, ", "a / b, "]
)
def test_text_in_a_string_of_json_loses_nothing(said: str) -> None:
    """What only looks like an escape is none; half a character is left as it was sent."""
    read = readable_part(json.dumps([said * 40]), strings=True)
    assert read == f'["{said * 40}"]'.replace("\ud83d\0", r"\ud83d\u0000")
    assert readable_part(json.dumps([said * 40])) == json.dumps([said * 40])


def test_a_record_of_indented_json_is_one_line() -> None:
    """Unless the lines are numbered: then they are a file's, which may be edited."""
    text = json.dumps([{"id": n, "state": "paid"} for n in range(40)], indent=2)
    records = [f'  {{"id": {n}, "state": "paid"}}' for n in range(40)]
    assert source_lines(text) == ["[", *(f"{record}," for record in records[:-1]), records[-1], "]"]
    numbered = "\n".join(f"{n}\t{line}" for n, line in enumerate(text.splitlines(), 1))
    assert '    "id": 7,' in source_lines(numbered)


def test_a_very_long_text_is_read_by_whole_lines() -> None:
    """Where its middle is left out, no line is taken that is only half of one."""
    lines = [f"crane_{number:05} stands on berth_{number:05}" for number in range(5_000)]
    assert set(source_lines("\n".join(lines))) < set(lines)


@given(text=_TEXTS)
def test_what_fits_is_chosen_whole(text: str) -> None:
    """Exactly as much room as the lines have is enough, with names or without."""
    lines = source_lines(text)
    assert choose_lines(lines, len("\n".join(lines)), Vocabulary()) == lines


def test_rare_names_come_first_and_count_once() -> None:
    """What few results hold tells most; a second line with the same name tells nothing new."""
    common = known(
        *["every_result has this_name"] * 30, "only_here stands\nonly_here again and every_result\nthis_name"
    )
    lines = ["this_name and every_result", "only_here stands", "the same only_here again", "words"]
    assert choose_lines(lines, 20, common) == ["only_here stands"]


@pytest.mark.parametrize(
    "told",
    [
        "the crane cannot find a berth",
        "BerthError: none is free",
        "port.crane.BerthException",
        "port.exceptions.BerthTaken: wait",
        "berth 7: No such file or directory",
        "3 issues are left",
        "npm: peer conflict at react",
        "CRITICAL the crane can't turn",
        "3 examples, 2 failures",
        "ledger is closed (BerthError)",
    ],
)
def test_how_something_ended_comes_first(told: str) -> None:
    """Of lines with names as rare as one another, or with none; unless they are a file's, which ends nothing."""
    lines = [f"part_{letter} is on its berth" for letter in "abcdef"]
    lines[3] = told
    vocabulary = known("\n".join(lines[:3]))
    assert choose_lines(lines, 62, vocabulary, outcome=True) == [lines[0], told]
    assert told not in choose_lines(["retry_once on the part_a error", *lines[:3]], 62, vocabulary)


@pytest.mark.parametrize(
    "told", ["0 errors", "Failures: 0", "web3 : ok=12 failed=0", '{"errors": 0}', "error=0, 0 failed"]
)
def test_no_errors_are_no_trouble(told: str) -> None:
    """A summary that counts none is found a thousand times in the log of a build that failed."""
    assert not reports_trouble(told)
    assert reports_trouble(told.replace("0", "10"))


def test_only_the_last_lines_that_report_trouble_come_first() -> None:
    """The others are worth what their names are."""
    lines = [f"step {number} failed" for number in range(9)] + ["part_a is on its berth"]
    assert choose_lines(lines, 70, Vocabulary(), outcome=True) == [*lines[6:9], lines[9]]


def test_the_lines_around_a_telling_one_take_what_room_is_left() -> None:
    """The nearest first: code that is changed is found again by the lines around it."""
    lines = ["try:", "    begin()", "    retries = max_attempts", "    finish()", "    return 0"]
    vocabulary = known("\n".join(lines))
    assert choose_lines(lines, 40, vocabulary) == lines[1:3]
    assert choose_lines([*lines[1:3], "    )", *lines[3:]], 46, vocabulary) == lines[1:3]
    assert choose_lines(lines, 53, vocabulary) == lines[1:4]


def test_a_text_without_names_keeps_its_beginning() -> None:
    """Prose is not left without a word."""
    lines = [f"the load {word} in the wind" for word in ("hangs", "turns", "sways", "falls")]
    assert choose_lines(lines, 60, Vocabulary()) == lines[:2]


@pytest.mark.parametrize("width", [64, 76, 30_000])
def test_encoded_data_does_not_outrank_what_is_said_beside_it(width: int) -> None:
    """An attachment in base64 is all rare words; none of its lines stand for a mail, and no room is lost on them."""
    data = base64.b64encode(random.Random(7).randbytes(20_000)).decode()
    said = ["Subject: the invoice", "Please pay 4,310.22 EUR by the first of May.", "Content-Type: application/pdf"]
    body = [data[at : at + width] for at in range(0, len(data), width)]
    lines = source_lines("\n".join([*said, *body, "--the end--"]))
    chosen = choose_lines(lines, 1_500, known("\n".join(said), "other_name"))
    assert [line for line in chosen if line not in said] == ["…", "--the end--"]


def test_encoded_data_in_an_address_does_not_outrank_what_is_said_beside_it() -> None:
    """As in a signed link to a file: there it has percent signs."""
    token = quote(base64.b64encode(random.Random(7).randbytes(900)).decode(), safe="")
    said = ["the invoice of part_7 is in row_9", "and the receipt_4 in row_12"]
    text = "\n".join([said[0], f"https://files.example/9/a.png?Expires=3600&Token={token}&Signed=host", said[1]])
    chosen = choose_lines(source_lines(text), 300, known("\n".join(said), "other_name"))
    assert chosen == [said[0], "https://files.example/9/a.png?Expires=3600&Token=…&Signed=host", said[1]]


def test_rows_of_numbers_do_not_outrank_what_is_said_among_them() -> None:
    """In a hex dump and in a log every line is rare names, of the same few forms."""
    chance = random.Random(7)
    said = ["The key of part_one is KEY_ALPHA.", "config/main.yaml has another checksum."]
    dump = [
        f"{at * 16:08x}: {' '.join(chance.randbytes(2).hex() for _ in range(8))}  ................" for at in range(300)
    ]
    times = [
        f"2026-11-{n % 28 + 1:02} 10:{n % 60:02}:{n * 7 % 60:02} request={chance.randrange(10**9)} done"
        for n in range(300)
    ]
    for rows in (dump, times):
        text = "\n".join([*rows[:100], said[0], *rows[100:200], said[1], *rows[200:]])
        chosen = choose_lines(source_lines(text), 2_000, known(text, "other_name"))
        assert set(said) < set(chosen)


def test_the_same_message_with_other_numbers_tells_less_each_time() -> None:
    """In a log the shortest message, repeated all along, would leave no room for those that say what happened."""
    chance = random.Random(3)
    often = [f"10:{n % 60:02}:{n * 7 % 60:02} trace={chance.randbytes(8).hex()} pause {n} ms" for n in range(100)]
    seldom = [
        f"10:59:0{n} trace={chance.randbytes(8).hex()} crane {what} of the north quay waits for its driver"
        for n, what in enumerate(("one", "two", "six"))
    ]
    log = chance.sample([*often, *seldom], 103)
    assert set(seldom) <= set(choose_lines(log, 800, known("other_name")))


TABLES = {
    "aligned": "SHIP      BERTH   TIDE\n{}",
    "commas": "ship,berth,tide\n{}",
    "bars": "| ship | berth | tide |\n|------|------|------|\n{}",
    "boxed": "+------+------+------+\n| ship | berth | tide |\n+------+------+------+\n{}\n+------+------+------+",
}


@pytest.mark.parametrize("kind", TABLES)
def test_rows_of_a_table_come_with_the_names_of_their_columns(kind: str) -> None:
    """Without these nobody could tell a row's numbers apart; between tables, each has its own."""
    row = {"aligned": "ship_{}    {}     {}", "commas": "ship_{},{},{}"}.get(kind, "| ship_{} | {} | {} |")
    table = TABLES[kind].format("\n".join(row.format(n, n * 7, n * 13 % 5) for n in range(60)))
    lines = source_lines(f"The harbour at noon.\n\n{table}\n60 rows")
    heading = next(line for line in lines if "berth" in line.lower())
    chosen = choose_lines(lines, 200, known(heading))
    assert heading in chosen
    assert chosen.index(heading) < min(at for at, line in enumerate(chosen) if "ship_" in line)
    assert heading not in choose_lines(["quay_one is closed", *lines], 20, known(heading))


def test_an_indented_line_is_no_row_of_a_table() -> None:
    """Its indentation separates no columns: what stands above code of the same depth does not name them."""
    code = ["// moves what is due", "const crane = fleet[7];", "crane.move(12);"]
    assert headings_of([f"\t\t\t{line}" for line in code]) == {}


@pytest.mark.parametrize(
    "table",
    [
        "     crane  berth  load\n0  crane_0      0   100\n1  crane_1      1   110",
        "\tname\tload\n0\ta\t4\n1\t\t5\n\tb2\t6",
    ],
)
def test_a_table_may_have_empty_cells_in_front(table: str) -> None:
    """As the heading above row numbers has."""
    rows = table.split("\n")
    assert headings_of(rows) == dict.fromkeys(range(1, len(rows)), 0)


def test_long_names_and_digests_are_no_data() -> None:
    """Nor is anything in a text that fits: a key may be what was asked for."""
    names = [
        f"/home/dev/Work/{'project/' * 8}SourceFile2.java",
        hashlib.sha256(b"image").hexdigest(),
        hashlib.sha512(b"archive").hexdigest().upper(),
        "shouldReturnNullWhenTheUser2IsNotFoundInTheDatabaseNorInTheCache",
        f"https://ru.wikipedia.org/wiki/{quote('Нижний_Новгород')}",
    ]
    text = "\n".join([*names, *["plain words of no use at all, " * 3 + str(n) for n in range(40)]])
    assert choose_lines(source_lines(text), 700, known(text, "other_name"))[:5] == names
    key = f"ssh-ed25519 {base64.b64encode(random.Random(7).randbytes(51)).decode()} dev@host"
    assert choose_lines(source_lines(key), 200, known(key)) == [key]


def test_a_vocabulary_forgets_what_is_long_ago() -> None:
    """It weighs a name by the last iterations alone, and so a resumed run need not read its whole record."""
    vocabulary, fresh = Vocabulary(), Vocabulary()
    for iteration in range(1, 501):
        text = f"name_{iteration % 7} and rare_{iteration}"
        vocabulary.read(iteration, results=[text])
        if iteration > 500 - Vocabulary.REMEMBERED:
            fresh.read(iteration, results=[text])
    for name in ("name_3", "rare_500", "rare_200", "never_said"):
        assert vocabulary.weights([name]) == fresh.weights([name])


def test_trouble_lines_are_the_first_and_the_last() -> None:
    """Each clipped to its width."""
    text = "\n".join(f"error {n} " + "x" * 100 for n in range(9)) + "\nall is well"
    assert [line[:7] for line in trouble_lines(text, most=3, width=20)] == ["error 0", "error 7", "error 8"]
    assert all(len(line) <= 20 for line in trouble_lines(text, most=3, width=20))


@given(st.lists(st.sampled_from(["all is well", "ERROR 7", "the fail-over", "fail", "not found: x", "", "İ is well"])))
def test_trouble_is_found_as_by_looking_at_every_line(lines: list[str]) -> None:
    """By the pattern alone, which takes ten times as long."""
    slow = list(dict.fromkeys(line for line in lines if reports_trouble(line)))
    found = trouble_lines("\n".join(lines), most=4, width=80)
    assert set(found) == set(slow) if len(slow) < 4 else found[:2] == slow[:2]
    assert all(line in slow for line in found)


@pytest.mark.parametrize("row", [".", "-", "/", "~", ".-", "./", "1-", "-/", "~."])
def test_a_long_row_of_marks_is_read_through_once(row: str) -> None:
    """Rulers and progress dots: a pattern that tries every cut of them would not come to its end."""
    names_in(row * 20_000)


def test_paths_identifiers_and_long_numbers_are_names() -> None:
    """Words of prose are not; a path keeps its dots and its root."""
    line = "see ../lib/tides_7.py and ~/src/main.c or /etc/hosts: readAll failed 404 times at 12"
    assert names_in(line) == {"../lib/tides_7.py", "~/src/main.c", "/etc/hosts", "readAll", "404"}


_PROGRAM = """
from random_runs import drawn, lived
from repertory.context import project
from repertory._json_text import canonical_json
from repertory.llm.model import encode_request
import hashlib
found = hashlib.sha256()
for seed in range(8):
    run = drawn(seed)
    for step in lived(run):
        request = project(step.snapshot, step.outcome.plan, profile=run.model)
        found.update(canonical_json(encode_request(request)))
print(found.hexdigest())
"""


def test_equal_runs_give_equal_views_in_every_process() -> None:
    """The order of sets and hashes differs from process to process; not one byte of a request does."""
    path = os.pathsep.join(sys.path)
    views = {
        subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(views) == 1


@given(st.text(st.sampled_from("aB_7é→ \xa0\u2028\ud800./:@~-(\n"), max_size=40))
def test_names_are_found_as_by_looking_for_each_word(text: str) -> None:
    """By a pattern, which takes three times as long."""
    words = (word.rstrip(".:-/") for word in re.findall(r"[A-Za-z\d_~./@][\w./:@~\-]+", text))
    made = re.compile(r"[a-z][A-Z]|[A-Z]{2,}[a-z]|_|\d|\w[./:\-]\w")
    slow = {word for word in words if len(word) > 2 and made.search(word) and re.search(r"[^\W\d]", word)}
    numbers = {name for name in names_in(text) if name.isdigit()}
    assert names_in(text) - numbers == slow
    assert all(len(number) > 2 and number in text for number in numbers)
