// Eight floats at a time, in the vector extension that GCC and Clang share: they become one AVX register, half of one of
// AVX-512, or two of NEON or SSE.
#pragma once

#include <cstdint>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int W = 8;
typedef float vec __attribute__((vector_size(4 * W)));
typedef std::int32_t ivec __attribute__((vector_size(4 * W)));

inline vec load(const float* from) {
    vec v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

inline void store(float* to, vec v) { std::memcpy(to, &v, sizeof v); }

// x where the mask is zero, 0 where it is all ones.
inline vec dropped(vec x, ivec mask) { return (vec)((ivec)x & ~mask); }

// e^x for x < 88, to 1e-7 relative; 0 below the smallest normal number; NaN stays. x = n ln 2 + r, and
// e^r = 1 + r + r² q(r), with q the polynomial of smallest relative error for |r| ≤ ln(2)/2 (own fit).
inline vec exponential(vec x) {
    const float shift = 12582912.0f;  // 1.5 · 2²³: what is added to it is rounded to a whole number.
    vec shifted = x * 1.44269504f + shift;
    vec n = shifted - shift;
    vec r = x - n * 0.693145752f;
    r -= n * 1.42860677e-6f;
    vec q = r * 1.3814466e-3f + 8.368781e-3f;
    q = q * r + 4.1668393e-2f;
    q = q * r + 0.1666652f;
    q = q * r + 0.49999994f;
    vec y = q * (r * r) + r + 1.0f;
    vec power = (vec)(((ivec)shifted << 23) + (127 << 23));
    return dropped(y * power, x < -87.0f);
}

// Eight rows of eight floats, transposed: to[c · stride + r] = rows[r][c].
inline void transpose(const float* const rows[W], float* to, long stride) {
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
    vec x[W], y[W];
    for (int r = 0; r < W; r++) x[r] = load(rows[r]);
    for (int r = 0; r < W; r += 2) {
        y[r] = __builtin_shufflevector(x[r], x[r + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        y[r + 1] = __builtin_shufflevector(x[r], x[r + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int r = 0; r < W; r += 4)
        for (int c = 0; c < 2; c++) {
            x[r + 2 * c] = __builtin_shufflevector(y[r + c], y[r + c + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            x[r + 2 * c + 1] = __builtin_shufflevector(y[r + c], y[r + c + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int c = 0; c < 4; c++) {
        store(to + c * stride, __builtin_shufflevector(x[c], x[c + 4], 0, 1, 2, 3, 8, 9, 10, 11));
        store(to + (c + 4) * stride, __builtin_shufflevector(x[c], x[c + 4], 4, 5, 6, 7, 12, 13, 14, 15));
    }
#else
    for (int r = 0; r < W; r++)
        for (int c = 0; c < W; c++) to[c * stride + r] = rows[r][c];
#endif
}

inline float sum_of(vec x) {
    float total = 0.0f;
    for (int i = 0; i < W; i++) total += x[i];
    return total;
}

}  // namespace
