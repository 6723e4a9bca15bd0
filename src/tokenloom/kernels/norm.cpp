// RMSNorm y = w ⊙ x / √(mean(x²) + ε) of each row (Zhang & Sennrich 2019), and its backward pass. A row is read from
// memory once; its norm is recomputed in the backward pass.

#include <algorithm>
#include <cmath>

#include "threads.h"
#include "vectors.h"

namespace {

constexpr long ROWS = 128;  // per task: fixed, so that sums do not depend on the number of threads

// 1 / √(mean(x²) + ε)
inline float inverse(const float* x, long D, float eps) {
    vec squares = {};
    for (long i = 0; i < D; i += W) squares += load(x + i) * load(x + i);
    return 1.0f / std::sqrt(sum_of(squares) / D + eps);
}

}  // namespace

// X (rows, D), w (D) or none → Y (rows, D). D is a multiple of 8.
EXPORT void rms_forward(const float* X, const float* w, float* Y, long rows, long D, float eps, int threads) {
    for_each((rows + ROWS - 1) / ROWS, threads, [=](long piece) {
        for (long row = piece * ROWS; row < std::min(rows, (piece + 1) * ROWS); row++) {
            const float* x = X + row * D;
            const float scale = inverse(x, D, eps);
            for (long i = 0; i < D; i += W) {
                vec y = load(x + i) * scale;
                store(Y + row * D + i, w ? y * load(w + i) : y);
            }
        }
    });
}

// With z the row without w, and g = w ⊙ dy: dx = (g − z mean(g ⊙ z)) / √(mean(x²) + ε). sums (pieces of `rms_rows()`
// rows, D), where there is a w: of dy ⊙ z.
EXPORT void rms_backward(const float* X, const float* w, const float* dY, float* dX, float* sums, long rows, long D,
                         float eps, int threads) {
    for_each((rows + ROWS - 1) / ROWS, threads, [=](long piece) {
        float* dw = sums + piece * D;
        if (w) std::memset(dw, 0, sizeof(float) * D);
        for (long row = piece * ROWS; row < std::min(rows, (piece + 1) * ROWS); row++) {
            const float *x = X + row * D, *dy = dY + row * D;
            const float scale = inverse(x, D, eps);
            vec along = {};
            for (long i = 0; i < D; i += W) {
                vec z = load(x + i) * scale, g = load(dy + i);
                if (w) store(dw + i, load(dw + i) + g * z), g *= load(w + i);
                along += g * z;
            }
            const float mean = sum_of(along) / D;
            for (long i = 0; i < D; i += W) {
                vec z = load(x + i) * scale, g = load(dy + i);
                if (w) g *= load(w + i);
                store(dX + row * D + i, (g - z * mean) * scale);
            }
        }
    });
}

EXPORT long rms_rows() { return ROWS; }
