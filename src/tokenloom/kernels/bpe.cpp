// Text → ids of byte-pair encoding in one pass over its code points: see tokenizers/bpe.py. The text is cut into
// chunks by the rules of tokenizers/pretokenize.py; a chunk that was met before is looked up, any other is merged pair by pair.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <vector>

namespace {

enum Class : uint8_t { LETTER, WHITESPACE, JOINER, SYMBOL, DIGIT };
constexpr size_t MOST_CHUNKS = 1 << 18, LONGEST_KEPT = 64;

uint64_t mixed(uint64_t x) {
    x *= 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

// 32 bytes: a chunk that was met before is mostly one look at memory. Up to eight characters below U+0100 are their own
// key; that of others is a hash, `hashed` is then set, and their characters stand in a pool. The first ids stand here,
// and where there are more, all of them in another pool.
struct Chunk {
    uint64_t key;
    uint32_t text, ids;
    uint8_t length, hashed;  // length 0: an empty place
    uint16_t count;
    int32_t first[3];
};

struct Encoder {
    bool scripted;              // SCRIPTED on bytes, or SPACED on characters
    const uint8_t* classes;     // of all code points
    std::vector<int32_t> letters;  // the id of each character up to some code point; of no use for bytes
    int32_t unknown, alphabet;  // unknown: -1 where there is none
    std::vector<std::pair<uint64_t, int32_t>> pairs;  // an open table: (left, right) → rank, -1 for an empty place
    std::vector<Chunk> chunks;
    size_t known = 0;
    std::vector<uint32_t> texts;
    std::vector<int32_t> ids, next, previous, symbols;
    std::vector<uint64_t> heap;
    std::mutex busy;

    // The rank of the merge of two ids, -1 where there is none.
    int32_t rank(int32_t left, int32_t right) const {
        const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
        for (size_t at = mixed(key) & (pairs.size() - 1);; at = (at + 1) & (pairs.size() - 1))
            if (pairs[at].second < 0 || pairs[at].first == key) return pairs[at].second;
    }

    void learn(const int32_t* merges, int32_t count) {
        size_t size = 16;
        while (size < 3 * (size_t)count) size *= 2;
        pairs.assign(size, {0, -1});
        for (int32_t m = 0; m < count; ++m) {
            const uint64_t key = (uint64_t)(uint32_t)merges[2 * m] << 32 | (uint32_t)merges[2 * m + 1];
            size_t at = mixed(key) & (size - 1);
            while (pairs[at].second >= 0) at = (at + 1) & (size - 1);
            pairs[at] = {key, m};
        }
    }

    void forget() {
        chunks.assign(1 << 12, Chunk{});
        texts.clear();
        ids.clear();
        known = 0;
    }

    // Remember the ids of a chunk that is not known: the first `count` of `symbols`.
    void keep(uint64_t key, bool hashed, const uint32_t* text, uint32_t length, size_t count) {
        if (known == MOST_CHUNKS) forget();
        if (2 * known >= chunks.size()) {
            std::vector<Chunk> old(2 * chunks.size());
            old.swap(chunks);
            for (const Chunk& c : old)
                if (c.length) place(c);
        }
        ++known;
        Chunk c{key, (uint32_t)texts.size(), (uint32_t)ids.size(), (uint8_t)length, hashed, (uint16_t)count, {}};
        std::copy_n(symbols.begin(), count < 3 ? count : 3, c.first);
        if (hashed) texts.insert(texts.end(), text, text + length);
        if (count > 3) ids.insert(ids.end(), symbols.begin(), symbols.begin() + count);
        place(c);
    }

    size_t place_of(uint64_t key) const { return mixed(mixed(key)) & (chunks.size() - 1); }

    void place(const Chunk& c) {
        size_t at = place_of(c.key);
        while (chunks[at].length) at = (at + 1) & (chunks.size() - 1);
        chunks[at] = c;
    }

    // Where the chunk that begins at i ends.
    size_t end_of(const uint32_t* text, size_t i, size_t n) const {
        const auto is = [&](size_t at, int kind) { return at < n && classes[text[at]] == kind; };
        if (!scripted) {
            size_t j = i + is(i, WHITESPACE);
            while (j < n && !is(j, WHITESPACE)) ++j;
            return j > i ? j : i + 1;
        }
        const bool space = text[i] == ' ';
        size_t j = i + (space || text[i] == '\'' || text[i] == 0x2019);
        if (is(j, LETTER) || is(j = i, LETTER)) {
            const size_t last = j + 32;
            for (++j; j < last && (is(j, LETTER) || is(j, JOINER));) ++j;
            return j;
        }
        const size_t from = j = i + space;
        while (j < from + 3 && is(j, DIGIT)) ++j;
        if (j > from) return j;
        while (j < from + 32 && (is(j, SYMBOL) || is(j, JOINER))) ++j;
        if (j > from) return j;
        for (j = i; j < i + 32 && is(j, WHITESPACE);) ++j;
        // A last space belongs to what follows it.
        for (size_t k = j; k > i; --k)
            if (k + 1 < n && text[k] == ' ' && !is(k + 1, WHITESPACE)) return k;
        return j;
    }

    // The letters of a chunk in `symbols`; false for a character without an id.
    bool spell(const uint32_t* text, size_t length) {
        symbols.clear();
        for (size_t i = 0; i < length; ++i) {
            const uint32_t c = text[i];
            if (!scripted) {
                const int32_t id = c < letters.size() && letters[c] >= 0 ? letters[c] : unknown;
                if (id < 0) return false;
                symbols.push_back(id);
            } else if (c < 0x80) {
                symbols.push_back(c);
            } else {
                const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
                symbols.push_back((0xff00 >> (more + 1) & 0xff) | c >> 6 * more);
                for (int k = more - 1; k >= 0; --k) symbols.push_back(0x80 | (c >> 6 * k & 0x3f));
            }
        }
        return true;
    }

    // Merge `symbols`: always the pair that was learned first, of equal ones the leftmost. Returns how many are left.
    size_t merge() {
        const int32_t n = symbols.size();
        next.resize(n);
        previous.resize(n);
        heap.clear();
        const auto offer = [&](int32_t left) {
            if (left < 0 || next[left] >= n) return;
            const int32_t found = rank(symbols[left], symbols[next[left]]);
            if (found < 0) return;
            heap.push_back((uint64_t)found << 32 | left);
            std::push_heap(heap.begin(), heap.end(), std::greater<>());
        };
        for (int32_t i = 0; i < n; ++i) next[i] = i + 1, previous[i] = i - 1;
        for (int32_t i = 0; i + 1 < n; ++i) offer(i);
        while (!heap.empty()) {
            const int32_t found = heap[0] >> 32, left = (uint32_t)heap[0];
            std::pop_heap(heap.begin(), heap.end(), std::greater<>());
            heap.pop_back();
            // What was merged in the meantime is no such pair any more.
            if (symbols[left] < 0 || next[left] >= n) continue;
            const int32_t right = next[left];
            if (rank(symbols[left], symbols[right]) != found) continue;
            symbols[left] = alphabet + found;
            symbols[right] = -1;
            if ((next[left] = next[right]) < n) previous[next[left]] = left;
            offer(left);
            offer(previous[left]);
        }
        return std::remove(symbols.begin(), symbols.end(), -1) - symbols.begin();
    }

    // Append the ids of a chunk to `out`, which has room for three more; null for a character without an id.
    int32_t* encode(const uint32_t* text, uint32_t length, int32_t* out) {
        uint64_t key = 0;
        uint32_t any = 0;
        for (uint32_t i = 0; length <= 8 && i < length; ++i) key |= (uint64_t)text[i] << 8 * i, any |= text[i];
        const bool hashed = length > 8 || any > 0xff;
        if (hashed) {
            key = length;
            for (uint32_t i = 0; i < length; ++i) key = (key ^ text[i]) * 0x100000001b3u;
        }
        for (size_t at = place_of(key); chunks[at].length; at = (at + 1) & (chunks.size() - 1)) {
            const Chunk& c = chunks[at];
            if (c.key != key || c.length != length || c.hashed != hashed) continue;
            if (hashed && memcmp(&texts[c.text], text, length * sizeof *text)) continue;
            if (c.count > 3) return std::copy_n(&ids[c.ids], c.count, out);
            memcpy(out, c.first, sizeof c.first);
            return out + c.count;
        }
        if (!spell(text, length)) return nullptr;
        const size_t count = merge();
        if (length <= LONGEST_KEPT) keep(key, hashed, text, length, count);
        return std::copy_n(symbols.begin(), count, out);
    }
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// letters: the ids of the code points 0 … known - 1, -1 for none; classes and merges as in Encoder.
EXPORT Encoder* bpe_new(int scripted, const uint8_t* classes, const int32_t* letters, int32_t known, int32_t unknown,
                        int32_t alphabet, const int32_t* merges, int32_t count) {
    Encoder* made = new Encoder{};
    made->scripted = scripted;
    made->classes = classes;
    made->letters.assign(letters, letters + known);
    made->unknown = unknown;
    made->alphabet = alphabet;
    made->learn(merges, count);
    made->forget();
    return made;
}

EXPORT void bpe_free(Encoder* one) { delete one; }

// Code points → ids in `out`, which has room for all (one a character, or one a byte) and three more. Returns how many, -1 for a
// character without an id; and in `read` how far the text is done: where more follows (`last` is 0), two chunks are left.
EXPORT int64_t bpe_encode(Encoder* one, const uint32_t* text, int64_t n, int last, int32_t* out, int64_t* read) {
    std::lock_guard<std::mutex> alone(one->busy);
    int32_t *end = out, *ends[2] = {out, out};
    int64_t i = 0, starts[2] = {0, 0};
    while (i < n) {
        starts[0] = starts[1], ends[0] = ends[1], starts[1] = i, ends[1] = end;
        const int64_t j = one->end_of(text, i, n);
        if (!(end = one->encode(text + i, j - i, end))) return -1;
        i = j;
    }
    *read = last ? n : starts[0];
    return (last ? end : ends[0]) - out;
}
