"""Check generated text of the main job: blocks begin with a speaker, and words exist in the plays."""

import re
import sys

import tokenloom
from tokenloom.data.text import read_text


def main(run: str) -> int:
    """Measure ten samples of a run on `shakespeare`; return 1 when they are not good enough."""
    task = tokenloom.load(run)
    known = set(re.findall(r"[A-Za-z']+", " ".join(d.text for d in read_text("shakespeare").documents).lower()))
    texts = task.generate_all([None], num_samples=10, max_new_tokens=500, seed=1)[0]
    blocks, words = [], []
    for text in texts:
        # The first block continues the prompt; the last may be truncated.
        blocks += [block for block in text.strip("\n").split("\n\n")[:-1] if block.strip()]
        words += re.findall(r"[A-Za-z']+", text.lower())[:-1]
    speakers = sum(bool(re.match(r"[^\n:]{1,40}:\n", block)) for block in blocks) / max(1, len(blocks))
    real = sum(word in known for word in words) / max(1, len(words))
    print(f"{len(blocks)} blocks, {speakers:.0%} open with a speaker; {len(words)} words, {real:.0%} are in the plays")
    return int(not (len(blocks) >= 10 and speakers >= 0.8 and real >= 0.7))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
