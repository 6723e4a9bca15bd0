// One more token for every row through a GPT, from its embedding to its logits: see decode.py.
// Rows go through a matrix six at a time; a panel of 16 of its columns stays in the processor's cache for all of them.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "vectors.h"

constexpr int PANEL = 16, NV = PANEL / W, ROWS = 6;

struct Model {
    int32_t layers, D, H, Hk, Dh, hidden, vocab, capacity, centered, qk_norm, activation;
    float eps, qk_eps;
    const float *embedding, *position_vectors, *cos, *sin, *weights;
};

static int padded(int n) { return (n + PANEL - 1) / PANEL * PANEL; }

// x / (1 + e^-y).
static vec gated(vec x, vec y) { return x / (1.f + exponential(y > -80.f ? -y : vec{} + 80.f)); }

// The order of ACTIVATIONS in decode.py. The error function of GELU to 1.5e-7: Abramowitz & Stegun 7.1.26.
static vec activate(vec x, int kind) {
    const vec relu = x > 0.f ? x : vec{}, a = (x < 0.f ? -x : x) * 0.70710678f, t = 1.f / (1.f + 0.3275911f * a);
    if (kind == 0) return relu;
    if (kind == 1) return relu * relu;
    if (kind == 2) return gated(x, x);
    if (kind == 3) return gated(x, 1.59576912f * (x + 0.044715f * x * x * x));
    vec p = (((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
    vec rest = 0.5f * p * t * exponential(-a * a);  // Φ(-|x|)
    return x * (x < 0.f ? rest : 1.f - rest);
}

// y (+)= x w + b for R rows and 16 columns.
template <int R>
static void panel(const float* x, int ldx, const float* w, const float* b, int in, float* y, int ldy, bool add) {
    vec a[R][NV], c[NV];
    for (int r = 0; r < R; ++r)
        for (int k = 0; k < NV; ++k) a[r][k] = load(b + k * W) + (add ? load(y + r * ldy + k * W) : vec{});
    for (int i = 0; i < in; ++i) {
        for (int k = 0; k < NV; ++k) c[k] = load(w + i * PANEL + k * W);
        for (int r = 0; r < R; ++r)
            for (int k = 0; k < NV; ++k) a[r][k] += x[r * ldx + i] * c[k];
    }
    for (int r = 0; r < R; ++r)
        for (int k = 0; k < NV; ++k) store(y + r * ldy + k * W, a[r][k]);
}

// A map (in, out) stands in panels of 16 columns, its bias after it; `at` moves on to what comes next.
static void apply(const float*& at, int in, int out, const float* x, int ldx, float* y, int ldy, int rows, bool add) {
    static constexpr decltype(&panel<1>) of_rows[] = {panel<1>, panel<2>, panel<3>, panel<4>, panel<5>, panel<ROWS>};
    const float *w = at, *b = at + (size_t)padded(out) * in;
    at = b + padded(out);
    for (int p = 0; p < out; p += PANEL, w += PANEL * in, b += PANEL)
        for (int r = 0; r < rows; r += ROWS)
            of_rows[rows - r < ROWS ? rows - r - 1 : ROWS - 1](x + r * ldx, ldx, w, b, in, y + r * ldy + p, ldy, add);
}

static float dot(const float* a, const float* b, int n) {
    vec s{};
    int i = 0;
    for (; i + W <= n; i += W) s += load(a + i) * load(b + i);
    float rest = sum_of(s);
    for (; i < n; ++i) rest += a[i] * b[i];
    return rest;
}

// y = (x - mean) / sqrt(variance + eps), or without the mean.
static void normalize(const float* x, float* y, int n, float eps, bool centered) {
    float total = 0;
    for (int i = 0; centered && i < n; ++i) total += x[i];
    for (int i = 0; i < n; ++i) y[i] = x[i] - total / n;
    const float by = 1 / std::sqrt(dot(y, y, n) / n + eps);
    for (int i = 0; i < n; ++i) y[i] *= by;
}

// y = by * sum of s[j] V[j], for C vectors of a row.
template <int C>
static void weigh(const float* s, const float* V, int n, int Dh, float by, float* y) {
    vec a[C] = {};
    for (int j = 0; j < n; ++j)
        for (int c = 0; c < C; ++c) a[c] += s[j] * load(V + (size_t)j * Dh + c * W);
    for (int c = 0; c < C; ++c) store(y + c * W, a[c] * by);
}

// One query over n keys and values (n, Dh). s has room for n scores and one vector more.
static void attend(const float* q, const float* K, const float* V, int n, int Dh, float* s, float* y) {
    const float scale = 1 / std::sqrt((float)Dh);
    float best = -INFINITY;
    for (int j = 0; j < n; ++j) {
        best = std::fmax(best, s[j] = scale * dot(q, K + (size_t)j * Dh, Dh));
        for (int d = 0; d < Dh; d += 16) __builtin_prefetch(V + (size_t)j * Dh + d);
    }
    store(s + n, vec{} - INFINITY);
    vec total{};
    for (int j = 0; j < n; j += W) {
        const vec e = exponential(load(s + j) - best);
        store(s + j, e);
        total += e;
    }
    const float by = 1 / sum_of(total);
    int d = 0;
    for (; d + 4 * W <= Dh; d += 4 * W) weigh<4>(s, V + d, n, Dh, by, y + d);
    for (; d + W <= Dh; d += W) weigh<1>(s, V + d, n, Dh, by, y + d);
    for (; d < Dh; ++d) {
        y[d] = 0;
        for (int j = 0; j < n; ++j) y[d] += s[j] * by * V[(size_t)j * Dh + d];
    }
}

// Queries and keys x (heads, Dh) at place n: normalized, scaled, turned.
static void place_heads(const Model* m, float* x, int64_t n, const float* scales) {
    for (int h = 0, Dh = m->Dh, half = Dh / 2; h < m->H + m->Hk; ++h, x += Dh, scales += Dh) {
        if (m->qk_norm) normalize(x, x, Dh, m->qk_eps, false);
        for (int i = 0; i < Dh; ++i) x[i] *= scales[i];
        for (int i = 0; m->cos && i < half; ++i) {
            const float a = x[i], b = x[i + half], *cos = m->cos + n * Dh + i, *sin = m->sin + n * Dh + i;
            x[i] = a * *cos + b * *sin;
            x[i + half] = b * cos[half] + a * sin[half];
        }
    }
}

// ids, places (rows): each row's token and where it stands. cache (layers, 2, rows, Hk, capacity, Dh). logits: rows of
// padded(vocab). Returns 1 for an id that there is not.
EXPORT int decode(
    const Model* m, int rows, const int64_t* ids, const int64_t* places, float* cache, float* logits) {
    const int D = m->D, Dh = m->Dh, H = m->H, Hk = m->Hk, heads = (H + 2 * Hk) * Dh, mixed = H * Dh;
    const int lx = padded(D), la = padded(heads > m->hidden ? heads : m->hidden);
    std::vector<float> room((size_t)rows * (2 * lx + la + mixed) + m->capacity + W);
    float *X = room.data(), *N = X + rows * lx, *A = N + rows * lx, *Y = A + rows * la, *s = Y + rows * mixed;
    for (int r = 0; r < rows; ++r) {
        if (ids[r] < 0 || ids[r] >= m->vocab) return 1;
        for (int i = 0; i < D; ++i) X[r * lx + i] = m->embedding[ids[r] * D + i] + (m->position_vectors ? m->position_vectors[places[r] * D + i] : 0);
    }
    auto norm = [&] { for (int r = 0; r < rows; ++r) normalize(X + r * lx, N + r * lx, D, m->eps, m->centered); };
    const float* at = m->weights;
    const size_t one = (size_t)m->capacity * Dh;
    for (int l = 0; l < m->layers; ++l) {
        const float* scales = at;
        at += (H + Hk) * Dh;
        norm();
        apply(at, D, heads, N, lx, A, la, rows, false);
        for (int r = 0; r < rows; ++r) {
            float *q = A + r * la, *K = cache + (size_t)(2 * l * rows + r) * Hk * one, *V = K + rows * Hk * one;
            place_heads(m, q, places[r], scales);
            for (int h = 0; h < Hk; ++h) {
                memcpy(K + h * one + places[r] * Dh, q + (H + h) * Dh, Dh * sizeof(float));
                memcpy(V + h * one + places[r] * Dh, q + (H + Hk + h) * Dh, Dh * sizeof(float));
            }
            for (int h = 0; h < H; ++h) {
                const size_t from = h / (H / Hk) * one;
                attend(q + h * Dh, K + from, V + from, places[r] + 1, Dh, s, Y + r * mixed + h * Dh);
            }
        }
        apply(at, mixed, D, Y, mixed, X, lx, rows, true);
        norm();
        apply(at, D, m->hidden, N, lx, A, la, rows, false);
        for (int r = 0; r < rows; ++r)
            for (float *y = A + r * la, *end = y + m->hidden; y < end; y += W) store(y, activate(load(y), m->activation));
        apply(at, m->hidden, D, A, la, X, lx, rows, true);
    }
    norm();
    apply(at, D, m->vocab, N, lx, logits, padded(m->vocab), rows, false);
    return 0;
}
