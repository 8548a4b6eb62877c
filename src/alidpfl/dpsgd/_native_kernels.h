/* The kernels, included once for each instruction set (see _native.c for NAME, TARGET, LANES and TALL_n). */

typedef float NAME(vec) __attribute__((vector_size(4 * LANES), aligned(4)));
typedef double NAME(doubles) __attribute__((vector_size(8 * LANES)));
typedef int32_t NAME(bits) __attribute__((vector_size(4 * LANES), aligned(4)));

/* Replace NaN and infinity by zero, without a branch. Then a factor of 0 removes a record: 0 x NaN is NaN. */
INLINE void NAME(make_finite)(NAME(vec) *v) { *v = (NAME(vec))((NAME(bits))*v & (*v - *v == (NAME(vec)){0})); }

/* Load some floats, at most LANES, made finite, with zeros behind them. */
INLINE void NAME(load_finite)(NAME(vec) *v, const float *x, int64_t some) {
    *v = (NAME(vec)){0};
    memcpy(v, x, (size_t)some * sizeof(float));
    NAME(make_finite)(v);
}

/* Compute R rows by V vectors of output channels of the gradient of one record, or of one person with all its records,
 * kept in registers over all positions. Write them out, made finite. Return the sum of the squares before that, added in double after the tile: a long float sum
 * would lose digits of the norm. */
#define DEFINE_TILE(FUNCTION, R, V)                                                                                    \
    INLINE double FUNCTION(const conv_shape *s, const float *x, const float *g, float *out) { \
        NAME(vec) sum[R][V];                                                                                           \
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int v = 0; v < V; v++) sum[i][v] = (NAME(vec)){0};              \
        for (int64_t r = 0; r < s->records; r++, x += s->sample_size)                                                  \
        for (int64_t oy = 0; oy < s->out_height; oy++) {                                                               \
            const float *xp = x + oy * s->step_y, *gp = g;                                                             \
            g += s->out_width * s->channels_out;                                                                       \
            for (int64_t ox = 0; ox < s->out_width; ox++, xp += s->step_x, gp += s->channels_out) {                    \
                NAME(vec) grad[V];                                                                                     \
                UNROLL for (int v = 0; v < V; v++) grad[v] = *(const NAME(vec) *)(gp + v * LANES);                     \
                UNROLL for (int i = 0; i < R; i++) UNROLL for (int v = 0; v < V; v++) sum[i][v] += xp[i] * grad[v];    \
            }                                                                                                          \
        }                                                                                                              \
        NAME(vec) squares = {0};                                                                                       \
        UNROLL for (int i = 0; i < R; i++) UNROLL for (int v = 0; v < V; v++) {                                        \
            squares += sum[i][v] * sum[i][v];                                                                          \
            NAME(make_finite)(&sum[i][v]);                                                                             \
            *(NAME(vec) *)(out + i * s->channels_out + v * LANES) = sum[i][v];                                         \
        }                                                                                                              \
        double total = 0;                                                                                              \
        for (int lane = 0; lane < LANES; lane++) total += (double)squares[lane];                                       \
        return total;                                                                                                  \
    }

/* Compute all rows of V vectors of output channels: tall tiles, then tiles of five rows (kernels are often 5 wide),
 * then single rows. */
#define DEFINE_BLOCK(V)                                                                                                \
    DEFINE_TILE(NAME(tall_##V), TALL_##V, V)                                                                           \
    DEFINE_TILE(NAME(five_##V), 5, V)                                                                                  \
    DEFINE_TILE(NAME(one_##V), 1, V)                                                                                   \
    INLINE double NAME(block_##V)(const conv_shape *s, const float *x, const float *g, float *out) {                   \
        double total = 0;                                                                                              \
        for (int64_t run = 0; run < s->runs_y * s->runs_x; run++) {                                                    \
            const float *xr = x + run / s->runs_x * s->run_step_y + run % s->runs_x * s->run_step_x;                   \
            float *o = out + run * s->run_length * s->channels_out;                                                    \
            int64_t row = 0;                                                                                           \
            for (; row + TALL_##V <= s->run_length; row += TALL_##V)                                                   \
                total += NAME(tall_##V)(s, xr + row, g, o + row * s->channels_out);                                    \
            for (; row + 5 <= s->run_length; row += 5)                                                                 \
                total += NAME(five_##V)(s, xr + row, g, o + row * s->channels_out);                                    \
            for (; row < s->run_length; row++)                                                                         \
                total += NAME(one_##V)(s, xr + row, g, o + row * s->channels_out);                                     \
        }                                                                                                              \
        return total;                                                                                                  \
    }

DEFINE_BLOCK(4)
DEFINE_BLOCK(2)
DEFINE_BLOCK(1)

/* Compute the weight gradient of a record or person, out[row][channel out], and return its sum of squares. channels_out must be a
 * multiple of LANES. */
INLINE double NAME(sample)(const conv_shape *s, const float *x, const float *g, float *out) {
    double total = 0;
    int64_t c = 0;
    for (; c + 4 * LANES <= s->channels_out; c += 4 * LANES) total += NAME(block_4)(s, x, g + c, out + c);
    for (; c + 2 * LANES <= s->channels_out; c += 2 * LANES) total += NAME(block_2)(s, x, g + c, out + c);
    for (; c + LANES <= s->channels_out; c += LANES) total += NAME(block_1)(s, x, g + c, out + c);
    return total;
}

/* Write out all records' weight gradients and their sums of squares. */
TARGET void NAME(alidpfl_conv)(const conv_shape *s, const float *x, const float *g, float *out, double *squared) {
    const int64_t positions = s->out_height * s->out_width, rows = s->runs_y * s->runs_x * s->run_length;
    const unsigned mode = flush_denormals();
    for (int64_t n = 0; n < s->batch; n++)
        squared[n] = NAME(sample)(s, x + n * s->records * s->sample_size,
                                  g + n * s->records * positions * s->channels_out,
                                  out + n * rows * s->channels_out);
    restore_denormals(mode);
}

/* Factor that brings a norm to at most `limit`, and 0 to drop a record: its norm is NaN or above LARGEST_NORM. */
INLINE float NAME(clip_factor)(double norm, double limit) {
    const double ratio = limit / norm, most_1 = ratio < 1 ? ratio : 1;
    return norm <= LARGEST_NORM ? (float)most_1 : 0.0f; /* 0 for NaN */
}

/* Sum all records' weight gradients. Each is scaled so that its norm together with the `others` (squared norms over the
 * model's other parameters) is at most `limit`. There is no branch on a record's values. */
TARGET void NAME(alidpfl_conv_clipped_sum)(const conv_shape *s, const float *x, const float *g, const double *others,
                                           double limit, float *restrict scratch, float *restrict sum, double *norms) {
    const int64_t positions = s->out_height * s->out_width, rows = s->runs_y * s->runs_x * s->run_length;
    const unsigned mode = flush_denormals();
    for (int64_t n = 0; n < s->batch; n++) {
        const double own =
            NAME(sample)(s, x + n * s->records * s->sample_size,
                         g + n * s->records * positions * s->channels_out, scratch);
        norms[n] = __builtin_sqrt(others[n] + own);
        const float factor = NAME(clip_factor)(norms[n], limit);
        for (int64_t i = 0; i < rows * s->channels_out; i++) sum[i] += factor * scratch[i];
    }
    restore_denormals(mode);
}

/* Persons' sums of outer products, narrow rows times wide rows, as sums of `directions` times `values`. Gram-Schmidt in
 * double; gradient_forms.py says what for. No branch depends on a value. `scratch` has room for the rows that are left,
 * the shares and two lengths a row. Squares are added in one order, record by record. */
INLINE double NAME(dot_doubles)(int64_t count, const double *a, const double *b) {
    double sums[LANES] = {0}, total = 0;
    int64_t j = 0;
    for (; j + LANES <= count; j += LANES)
        for (int lane = 0; lane < LANES; lane++) sums[lane] += a[j + lane] * b[j + lane];
    for (; j < count; j++) total += a[j] * b[j];
    for (int lane = 0; lane < LANES; lane++) total += sums[lane];
    return total;
}

INLINE double NAME(dot_floats)(int64_t count, const float *a, const float *b) {
    double sums[LANES] = {0}, total = 0;
    int64_t j = 0;
    for (; j + LANES <= count; j += LANES)
        for (int lane = 0; lane < LANES; lane++) sums[lane] += (double)a[j + lane] * (double)b[j + lane];
    for (; j < count; j++) total += (double)a[j] * (double)b[j];
    for (int lane = 0; lane < LANES; lane++) total += sums[lane];
    return total;
}

INLINE void NAME(make_all_finite)(int64_t count, float *x) {
    for (int64_t j = 0; j < count; j++) x[j] = x[j] - x[j] == 0.0f ? x[j] : 0.0f;
}

/* Directions of one person's narrow rows, and shares[row][direction]. */
INLINE void NAME(directions)(int64_t records, int64_t narrow, double *left, double *shares, double *least,
                             float *directions) {
    for (int64_t r = 0; r < records; r++)
        least[r] = PARALLEL * __builtin_sqrt(NAME(dot_doubles)(narrow, left + r * narrow, left + r * narrow));
    for (int64_t r = 0; r < records; r++) {
        double *row = left + r * narrow;
        const double length = __builtin_sqrt(NAME(dot_doubles)(narrow, row, row));
        const double factor = (double)(length > least[r]) / (length > TINY ? length : TINY), keep = length - length;
        for (int64_t j = 0; j < narrow; j++) row[j] = row[j] * factor + keep; /* NaN stays NaN */
        for (int64_t j = 0; j < narrow; j++) directions[r * narrow + j] = (float)row[j];
        shares[r * records + r] = (length > least[r] ? length : 0.0) + keep;
        for (int64_t after = r + 1; after < records; after++) {
            double *other = left + after * narrow;
            const double share = NAME(dot_doubles)(narrow, other, row);
            shares[after * records + r] = share;
            for (int64_t j = 0; j < narrow; j++) other[j] -= share * row[j];
        }
    }
}

TARGET void NAME(alidpfl_orthogonal)(const persons_shape *s, const float *restrict x, const float *restrict y,
                                     double *restrict scratch, float *restrict directions, float *restrict values,
                                     double *restrict squared) {
    const int64_t records = s->records, narrow = s->narrow, wide = s->wide;
    double *left = scratch, *shares = left + records * narrow, *least = shares + records * records;
    double *lengths = least + records;
    const unsigned mode = flush_denormals();
    for (int64_t n = 0; n < s->batch; n++, x += records * narrow, y += records * wide) {
        float *q = directions + n * records * narrow, *v = values + n * records * wide;
        for (int64_t i = 0; i < records * narrow; i++) left[i] = (double)x[i];
        NAME(directions)(records, narrow, left, shares, least, q);
        for (int64_t r = 0; r < records; r++) {
            float *out = v + r * wide;
            for (int64_t j = 0; j < wide; j++) out[j] = (float)shares[r * records + r] * y[r * wide + j];
            for (int64_t i = r + 1; i < records; i++) {
                const float share = (float)shares[i * records + r];
                for (int64_t j = 0; j < wide; j++) out[j] += share * y[i * wide + j];
            }
            lengths[r] = __builtin_sqrt(NAME(dot_floats)(wide, out, out));
        }
        double total = 0;
        for (int64_t r = 0; r < records; r++)
            for (int64_t i = 0; i < records; i++)
                total += __builtin_fabs(NAME(dot_floats)(narrow, q + r * narrow, q + i * narrow)) * lengths[r] * lengths[i];
        squared[n] = total;
        NAME(make_all_finite)(records * narrow, q);
        NAME(make_all_finite)(records * wide, v);
    }
    restore_denormals(mode);
}

/* ReLU and 2x2 max-pooling in one pass over x[batch][height][width][channels]. `winner` notes which entry of a window
 * passed, or NONE if none was positive. NaN passes, as in PyTorch. */
TARGET void NAME(alidpfl_relu_pool)(const pool_shape *s, const float *restrict x, float *restrict out,
                                    uint8_t *restrict winner) {
    const int64_t oh = s->height / 2, ow = s->width / 2, channels = s->channels, line = s->width * channels;
    for (int64_t window = 0; window < s->batch * oh * ow; window++) {
        const int64_t n = window / (oh * ow), oy = window / ow % oh, ox = window % ow;
        const float *xp = x + (n * s->height + 2 * oy) * line + 2 * ox * channels;
        for (int64_t c = 0; c < channels; c++) {
            float best = xp[c];
            int32_t who = 0;
            UNROLL for (int w = 1; w < 4; w++) {
                const float v = xp[w / 2 * line + w % 2 * channels + c];
                const int better = (v > best) | (v != v);
                best = better ? v : best;
                who = better ? w : who;
            }
            const int none = best <= 0.0f;
            out[window * channels + c] = none ? 0.0f : best;
            winner[window * channels + c] = (uint8_t)(none ? NONE : who);
        }
    }
}

/* The backward pass: each window's gradient goes to the entry that passed, zero to the others. */
TARGET void NAME(alidpfl_relu_pool_backward)(const pool_shape *s, const float *restrict grad,
                                             const uint8_t *restrict winner, float *restrict grad_x) {
    const int64_t oh = s->height / 2, ow = s->width / 2, channels = s->channels, line = s->width * channels;
    for (int64_t window = 0; window < s->batch * oh * ow; window++) {
        const int64_t n = window / (oh * ow), oy = window / ow % oh, ox = window % ow;
        float *gx = grad_x + (n * s->height + 2 * oy) * line + 2 * ox * channels;
        const float *g = grad + window * channels;
        const uint8_t *won = winner + window * channels;
        UNROLL for (int w = 0; w < 4; w++) for (int64_t c = 0; c < channels; c++)
            gx[w / 2 * line + w % 2 * channels + c] = won[c] == w ? g[c] : 0.0f;
    }
}

/* Softmax regression, ROWS records at a time, so that one load of the weights serves all of them. `sample[i]` is the
 * start of the i-th record's features. `width` is the number of classes, padded to whole vectors. Both functions add to
 * their output. */
#define DEFINE_SOFTMAX(ROWS)                                                                                           \
    INLINE void NAME(scores_##ROWS)(int64_t features, int64_t width, const float *const *sample, const float *weights, \
                                    float *scores) {                                                                   \
        for (int64_t c = 0; c < width; c += LANES) {                                                                   \
            NAME(vec) sum[ROWS];                                                                                       \
            UNROLL for (int i = 0; i < ROWS; i++) sum[i] = *(const NAME(vec) *)(scores + i * width + c);               \
            for (int64_t j = 0; j < features; j++) {                                                                   \
                const NAME(vec) w = *(const NAME(vec) *)(weights + j * width + c);                                     \
                UNROLL for (int i = 0; i < ROWS; i++) sum[i] += sample[i][j] * w;                                      \
            }                                                                                                          \
            UNROLL for (int i = 0; i < ROWS; i++) *(NAME(vec) *)(scores + i * width + c) = sum[i];                     \
        }                                                                                                              \
    }                                                                                                                  \
    INLINE void NAME(products_##ROWS)(int64_t classes, int64_t stride, const NAME(vec) *x, const float *residuals,     \
                                      float *sum) {                                                                    \
        for (int64_t c = 0; c < classes; c++) {                                                                        \
            NAME(vec) *out = (NAME(vec) *)(sum + c * stride);                                                          \
            NAME(vec) total = *out;                                                                                    \
            UNROLL for (int i = 0; i < ROWS; i++) total += x[i] * residuals[i * classes + c];                          \
            *out = total;                                                                                              \
        }                                                                                                              \
    }                                                                                                                  \
    INLINE void NAME(outer_##ROWS)(int64_t features, int64_t classes, int64_t stride, const float *const *sample,      \
                                   const float *residuals, float *sum) {                                               \
        NAME(vec) x[ROWS];                                                                                             \
        int64_t j = 0;                                                                                                 \
        for (; j + LANES <= features; j += LANES) {                                                                    \
            UNROLL for (int i = 0; i < ROWS; i++) NAME(load_finite)(&x[i], sample[i] + j, LANES);                      \
            NAME(products_##ROWS)(classes, stride, x, residuals, sum + j);                                             \
        }                                                                                                              \
        if (j == features) return;                                                                                     \
        UNROLL for (int i = 0; i < ROWS; i++) NAME(load_finite)(&x[i], sample[i] + j, features - j);                   \
        NAME(products_##ROWS)(classes, stride, x, residuals, sum + j);                                                 \
    }

DEFINE_SOFTMAX(8)
DEFINE_SOFTMAX(1)

/* Sum of squares, in double after a few terms: a long float sum would lose digits of the norm. Records lie anywhere in
 * memory, so the next one is prefetched while this one is read. */
INLINE double NAME(squared_norm)(int64_t features, const float *x, const float *next) {
    NAME(doubles) sums = {0};
    int64_t j = 0;
    for (; j + 4 * LANES <= features; j += 4 * LANES) {
        NAME(vec) sum = {0};
        UNROLL for (int k = 0; k < 4; k++) {
            const NAME(vec) v = *(const NAME(vec) *)(x + j + k * LANES);
            __builtin_prefetch(next + j + k * LANES);
            sum += v * v;
        }
        sums += __builtin_convertvector(sum, NAME(doubles));
    }
    double total = 0;
    for (int lane = 0; lane < LANES; lane++) total += sums[lane];
    for (; j < features; j++) total += (double)x[j] * (double)x[j];
    return total;
}

/* Add the products of a record with 1 to 4 others, PART apart. Adds eight terms in float, up to four such sums in float,
 * and then in double. `count` is a constant where inlined, and `features` a multiple of eight vectors. */
INLINE void NAME(products_with)(const int count, int64_t features, const float *x, const float *others,
                                double *products) {
    NAME(doubles) sums[4] = {{0}};
    for (int64_t j = 0; j < features;) {
        NAME(vec) four[4] = {{0}};
        for (int part = 0; part < 4 && j < features; part++, j += 8 * LANES) {
            NAME(vec) sum[4] = {{0}};
            UNROLL for (int k = 0; k < 8; k++) {
                const NAME(vec) v = *(const NAME(vec) *)(x + j + k * LANES);
                UNROLL for (int i = 0; i < count; i++)
                    sum[i] += v * *(const NAME(vec) *)(others + i * PART + j + k * LANES);
            }
            UNROLL for (int i = 0; i < count; i++) four[i] += sum[i];
        }
        UNROLL for (int i = 0; i < count; i++) sums[i] += __builtin_convertvector(four[i], NAME(doubles));
    }
    for (int i = 0; i < count; i++)
        for (int lane = 0; lane < LANES; lane++) products[i] += sums[i][lane];
}

/* Add the products of some features of every two records of a person to `products` (records x records). The features
 * are taken in parts, which are copied to `scratch`: there they begin at whole vectors and stay in the first-level
 * cache. The records of the next person are prefetched. */
TARGET static __attribute__((noinline)) void NAME(person_products)(int64_t records, int64_t all, int64_t features,
                                                                   const float *x, const int64_t *rows, int has_next,
                                                                   float *scratch, double *products) {
    for (int64_t first = 0; first < features; first += PART) {
        const int64_t left = features - first, some = left < PART ? left : PART;
        const int64_t part = (some + 8 * LANES - 1) / (8 * LANES) * (8 * LANES);
        for (int64_t r = 0; r < records; r++) {
            const float *next = x + rows[has_next ? records + r : r] * all + first;
            for (int64_t j = 0; j < some; j += 16) __builtin_prefetch(next + j);
            memcpy(scratch + r * PART, x + rows[r] * all + first, (size_t)some * sizeof(float));
            memset(scratch + r * PART + some, 0, (size_t)(part - some) * sizeof(float));
        }
        for (int64_t r = 0; r < records; r++)
            for (int64_t q = 0; q <= r; q += 4) {
                const int64_t count = r + 1 - q < 4 ? r + 1 - q : 4;
                const float *row = scratch + r * PART, *others = scratch + q * PART;
                double *out = products + r * records + q;
                if (count == 4) NAME(products_with)(4, part, row, others, out);
                else if (count == 3) NAME(products_with)(3, part, row, others, out);
                else if (count == 2) NAME(products_with)(2, part, row, others, out);
                else NAME(products_with)(1, part, row, others, out);
            }
    }
    for (int64_t r = 0; r < records; r++)
        for (int64_t q = 0; q < r; q++) products[q * records + r] = products[r * records + q];
}

/* scores[n][class] = x[rows[n]] . weights[.][class], and the squared norm of each of these records, or all products of
 * a person's records. Takes some features at a time, so that their weights stay in the first-level cache. */
TARGET void NAME(alidpfl_softmax_scores)(const softmax_shape *s, const float *x, const int64_t *rows,
                                         const float *weights, float *restrict scores, float *scratch,
                                         double *restrict squared) {
    const unsigned mode = flush_denormals();
    for (int64_t n = 0; n < s->batch * s->records; n++) squared[n] = 0;
    memset(scores, 0, (size_t)(s->batch * s->width) * sizeof(float));
    for (int64_t first = 0; first < s->features; first += SOFTMAX_FEATURES) {
        const int64_t left = s->features - first, features = left < SOFTMAX_FEATURES ? left : SOFTMAX_FEATURES;
        const float *w = weights + first * s->width;
        for (int64_t n = 0; n < s->batch;) {
            const float *sample[8];
            const int64_t some = s->batch - n >= 8 ? 8 : 1;
            for (int64_t i = 0; i < some; i++) {
                sample[i] = x + rows[n + i] * s->features + first;
                const int64_t after = n + i + 1 < s->batch ? n + i + 1 : n + i, begins = n + i + 1 - s->records;
                if (s->records == 1)
                    squared[n + i] += NAME(squared_norm)(features, sample[i], x + rows[after] * s->features + first);
                else if (begins % s->records == 0)
                    NAME(person_products)(s->records, s->features, features, x + first, rows + begins, after > n + i,
                                          scratch, squared + begins * s->records);
            }
            if (some == 8) NAME(scores_8)(features, s->width, sample, w, scores + n * s->width);
            else NAME(scores_1)(features, s->width, sample, w, scores + n * s->width);
            n += some;
        }
    }
    restore_denormals(mode);
}

/* Add the gradients of some persons to `sum`. Each is added up by itself first, so that its rounding depends on nobody
 * else, and terms that cancel are gone. persons * records is at most 8, and both are constants where this is inlined. */
INLINE void NAME(persons_outer)(const int64_t persons, const int64_t records, int64_t features, int64_t classes,
                                int64_t stride, const float *const *sample, const float *residuals, float *sum) {
    for (int64_t j = 0; j < features; j += LANES) {
        const int64_t left = features - j, some = left < LANES ? left : LANES;
        NAME(vec) x[8];
        UNROLL for (int64_t i = 0; i < persons * records; i++)
            if (some == LANES) NAME(load_finite)(&x[i], sample[i] + j, LANES);
            else NAME(load_finite)(&x[i], sample[i] + j, some);
        for (int64_t c = 0; c < classes; c++) {
            NAME(vec) *out = (NAME(vec) *)(sum + c * stride + j);
            NAME(vec) total = *out;
            UNROLL for (int64_t p = 0; p < persons; p++) {
                NAME(vec) own = x[p * records] * residuals[p * records * classes + c];
                UNROLL for (int64_t r = 1; r < records; r++)
                    own += x[p * records + r] * residuals[(p * records + r) * classes + c];
                total += own;
            }
            *out = total;
        }
    }
}

/* The same for one person with any number of records. `x` has room for two vectors of each. */
TARGET static __attribute__((noinline)) void NAME(person_outer)(int64_t records, int64_t features, int64_t classes, int64_t stride,
                               const float *restrict inputs, int64_t all, const int64_t *rows,
                               const float *restrict residuals, NAME(vec) *restrict x, float *restrict sum) {
    for (int64_t j = 0; j < features; j += 2 * LANES) {
        const int64_t left = features - j, some = left < LANES ? left : LANES;
        const int64_t more = left <= LANES ? 0 : left < 2 * LANES ? left - LANES : LANES;
        for (int64_t r = 0; r < records; r++) {
            const float *row = inputs + rows[r] * all + j;
            if (more == LANES) {
                NAME(load_finite)(&x[2 * r], row, LANES);
                NAME(load_finite)(&x[2 * r + 1], row + LANES, LANES);
            } else {
                NAME(load_finite)(&x[2 * r], row, some);
                NAME(load_finite)(&x[2 * r + 1], row + LANES, more);
            }
        }
        for (int64_t c = 0; c < classes; c++) {
            NAME(vec) own = {0}, second = {0};
            for (int64_t r = 0; r < records; r++) {
                own += x[2 * r] * residuals[r * classes + c];
                second += x[2 * r + 1] * residuals[r * classes + c];
            }
            *(NAME(vec) *)(sum + c * stride + j) += own;
            if (more) *(NAME(vec) *)(sum + c * stride + j + LANES) += second;
        }
    }
}

/* The next persons from row n on, at most up to `end`. Returns the number of their rows. */
TARGET static __attribute__((noinline)) int64_t NAME(next_persons)(const softmax_shape *s, int64_t features, int64_t stride, const float *x,
                                  const int64_t *rows, const float *residuals, int64_t left, float *more, float *sum) {
    const float *sample[8];
    const int64_t records = s->records, whole = records > 8 ? 1 : 8 / records;
    const int64_t persons = left >= whole * records ? whole : 1;
    if (records > 8) {
        NAME(person_outer)(records, features, s->width, stride, x, s->features, rows, residuals,
                           (NAME(vec) *)more, sum);
        return records;
    }
    for (int64_t i = 0; i < persons * records; i++) sample[i] = x + rows[i] * s->features;
#define PERSONS(P, K) NAME(persons_outer)(P, K, features, s->width, stride, sample, residuals, sum)
    switch (persons == 1 ? -records : records) {
        case 2: PERSONS(4, 2); break;
        case 3: PERSONS(2, 3); break;
        case 4: PERSONS(2, 4); break;
        case -2: PERSONS(1, 2); break;
        case -3: PERSONS(1, 3); break;
        case -4: PERSONS(1, 4); break;
        case -5: PERSONS(1, 5); break;
        case -6: PERSONS(1, 6); break;
        case -7: PERSONS(1, 7); break;
        default: PERSONS(1, 8);
    }
#undef PERSONS
    return persons * records;
}

/* sum[class][feature] += residuals[n][class] * x[rows[n]][feature], over all n, with 0 for features that are not finite.
 * Adds in float within a group of records, and in double over groups. The numbers `group`, one for each
 * person, must not decrease. `scratch` has room for classes x SOFTMAX_FEATURES and
 * for two vectors of each record of a person. */
TARGET void NAME(alidpfl_softmax_gradient)(const softmax_shape *s, const float *x, const int64_t *rows,
                                           const int64_t *group, const float *residuals, float *restrict scratch,
                                           double *restrict sum) {
    const int64_t classes = s->width;
    const unsigned mode = flush_denormals();
    for (int64_t first = 0; first < s->features; first += SOFTMAX_FEATURES) {
        const int64_t left = s->features - first, features = left < SOFTMAX_FEATURES ? left : SOFTMAX_FEATURES;
        const int64_t stride = (features + LANES - 1) / LANES * LANES;
        for (int64_t n = 0; n < s->batch;) {
            int64_t end = n;
            while (end < s->batch && group[end / s->records] == group[n / s->records]) end += s->records;
            memset(scratch, 0, (size_t)(classes * stride) * sizeof(float));
            while (n < end) {
                if (s->records > 1) {
                    n += NAME(next_persons)(s, features, stride, x + first, rows + n, residuals + n * classes, end - n,
                                            scratch + classes * SOFTMAX_FEATURES, scratch);
                    continue;
                }
                const float *sample[8];
                const int64_t some = end - n >= 8 ? 8 : 1;
                for (int64_t i = 0; i < some; i++) sample[i] = x + rows[n + i] * s->features + first;
                if (some == 8) NAME(outer_8)(features, classes, stride, sample, residuals + n * classes, scratch);
                else NAME(outer_1)(features, classes, stride, sample, residuals + n * classes, scratch);
                n += some;
            }
            for (int64_t c = 0; c < classes; c++)
                for (int64_t j = 0; j < features; j++)
                    sum[c * s->features + first + j] += (double)scratch[c * stride + j];
        }
    }
    restore_denormals(mode);
}

/* Write a person's gradient to `own` (classes x stride), and return the sum of its squares, added in double after at
 * most 32 terms. `x` has room for two vectors of each record. */
TARGET static __attribute__((noinline)) double NAME(person_gradient)(
    int64_t records, int64_t features, int64_t stride, int64_t classes, const float *restrict inputs,
    const int64_t *rows, const float *restrict residuals, NAME(vec) *restrict x, float *restrict own) {
    NAME(doubles) sums = {0};
    for (int64_t j = 0; j < features; j += 2 * LANES) {
        const int64_t left = features - j;
        for (int64_t r = 0; r < records; r++) {
            const float *row = inputs + rows[r] * features + j;
            x[2 * r] = x[2 * r + 1] = (NAME(vec)){0};
            if (left >= 2 * LANES) memcpy(&x[2 * r], row, 2 * sizeof(x[0]));
            else memcpy(&x[2 * r], row, (size_t)left * sizeof(float));
        }
        for (int64_t c = 0; c < classes;) {
            NAME(vec) squares = {0};
            for (int64_t end = c + 16 < classes ? c + 16 : classes; c < end; c++) {
                NAME(vec) sum = {0}, second = {0};
                for (int64_t r = 0; r < records; r++) {
                    sum += x[2 * r] * residuals[r * classes + c];
                    second += x[2 * r + 1] * residuals[r * classes + c];
                }
                squares += sum * sum + second * second;
                *(NAME(vec) *)(own + c * stride + j) = sum;
                *(NAME(vec) *)(own + c * stride + j + LANES) = second;
            }
            sums += __builtin_convertvector(squares, NAME(doubles));
        }
    }
    double total = 0;
    for (int lane = 0; lane < LANES; lane++) total += sums[lane];
    return total;
}

/* Sum of the clipped gradients of persons, each written out. For many records and few classes this takes less than the
 * products of all their records. `scratch` has room for two gradients and a vector of each record of a person. */
TARGET void NAME(alidpfl_softmax_persons)(const softmax_shape *s, const float *x, const int64_t *rows,
                                          const int64_t *group, const float *residuals, double limit,
                                          float *restrict scratch, double *restrict sum, double *restrict norms) {
    const int64_t records = s->records, persons = s->batch / records;
    const int64_t stride = (s->features + 2 * LANES - 1) / (2 * LANES) * (2 * LANES) + LANES, size = s->width * stride;
    float *own = scratch, *of_group = scratch + size, *vectors = of_group + size;
    const unsigned mode = flush_denormals();
    for (int64_t n = 0; n < persons;) {
        const int64_t first = group[n];
        memset(of_group, 0, (size_t)size * sizeof(float));
        for (; n < persons && group[n] == first; n++) {
            norms[n] = __builtin_sqrt(NAME(person_gradient)(records, s->features, stride, s->width, x, rows + n * records,
                                                            residuals + n * records * s->width, (NAME(vec) *)vectors,
                                                            own));
            const float factor = NAME(clip_factor)(norms[n], limit);
            for (int64_t i = 0; i < size; i++) of_group[i] += factor * (own[i] - own[i] == 0.0f ? own[i] : 0.0f);
        }
        for (int64_t c = 0; c < s->width; c++)
            for (int64_t j = 0; j < s->features; j++) sum[c * s->features + j] += (double)of_group[c * stride + j];
    }
    restore_denormals(mode);
}

/* Clip the gradients of persons. Each is a sum of records times residuals; `products` are those of the records. Write
 * the norms, or a little more, and scale the residuals, made finite. It does the same as softmax.py in PyTorch, with
 * gradient_forms.gram_norms: `terms` and `rounded` bound the rounding of the products and of the sum. */
TARGET void NAME(alidpfl_clip_persons)(const softmax_shape *s, const double *products, double terms, double rounded,
                                       double largest_input, double limit, float *restrict residuals, double *norms) {
    const int64_t records = s->records, classes = s->width;
    const unsigned mode = flush_denormals();
    for (int64_t n = 0; n < s->batch / records; n++, products += records * records, residuals += records * classes) {
        double squared = 0, total = 0, squared_inputs = 0;
        for (int64_t r = 0; r < records; r++) {
            const float *row = residuals + r * classes;
            const double own = products[r * records + r], length = NAME(dot_floats)(classes, row, row);
            squared_inputs += own;
            total += __builtin_sqrt(own) * __builtin_sqrt(length);
            squared += own * length;
            for (int64_t q = 0; q < r; q++)
                squared += 2 * products[r * records + q] * NAME(dot_floats)(classes, row, residuals + q * classes);
        }
        const double at_least = squared < 0 ? 0 : squared; /* NaN stays NaN */
        const double norm = __builtin_sqrt(at_least + terms * total * total) + rounded * total;
        norms[n] = squared_inputs <= largest_input ? norm : __builtin_inf();
        const float factor = NAME(clip_factor)(norms[n], limit);
        for (int64_t i = 0; i < records * classes; i++) {
            const float value = residuals[i];
            residuals[i] = factor * (value - value == 0.0f ? value : 0.0f);
        }
    }
    restore_denormals(mode);
}

/* Add one record's vector times factor to the total, rounded to the nearest whole numbers. If their squares add up to
 * more than `largest`, add it rounded toward zero, or nothing if that is too long as well. All is computed in any case.
 * The loops have no branch on a value, so that the compiler turns them into vector operations. */
INLINE double NAME(scaled)(float x, double factor) { return (double)(x - x == 0.0f ? x : 0.0f) * factor; }

TARGET void NAME(alidpfl_add_rounded)(int64_t count, const float *restrict x, double factor, double largest,
                                      double *restrict total) {
    double squares[LANES] = {0}, shorter_squares[LANES] = {0}, square = 0, shorter_square = 0;
    const int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            const double value = NAME(scaled)(x[i + lane], factor);
            const double nearest = __builtin_rint(value), shorter = __builtin_trunc(value);
            squares[lane] += nearest * nearest;
            shorter_squares[lane] += shorter * shorter;
        }
    for (int64_t i = whole; i < count; i++) {
        const double value = NAME(scaled)(x[i], factor);
        const double nearest = __builtin_rint(value), shorter = __builtin_trunc(value);
        square += nearest * nearest;
        shorter_square += shorter * shorter;
    }
    for (int lane = 0; lane < LANES; lane++) square += squares[lane], shorter_square += shorter_squares[lane];
    const int fits = square <= largest, shorter_fits = shorter_square <= largest;
    const double take = (double)fits, take_shorter = (double)(shorter_fits & !fits);
    for (int64_t i = 0; i < count; i++) {
        const double value = NAME(scaled)(x[i], factor);
        total[i] += take * __builtin_rint(value) + take_shorter * __builtin_trunc(value);
    }
}

/* Box-Muller: a 64-bit word for the radius and a 32-bit word for the angle give two standard normals. */
TARGET void NAME(alidpfl_box_muller)(int64_t pairs, const uint64_t *restrict radii, const int32_t *restrict angle,
                                     float *restrict cosines, float *restrict sines) {
    for (int64_t i = 0; i < pairs; i++) {
        /* u in (0, 1] from 62 bits, 31 leading and 31 trailing ones: each half is exact in a 32-bit integer. */
        const int32_t high = (int32_t)(radii[i] >> 32 & 0x7fffffff), low = (int32_t)((uint32_t)radii[i] >> 1);
        const float u = (float)high * 0x1p-31f + ((float)low + 0.5f) * 0x1p-62f;
        /* log u = exponent * log 2 + log m with m in [sqrt(1/2), sqrt(2)), log m by the series of atanh (m-1)/(m+1). */
        int32_t bits;
        memcpy(&bits, &u, 4);
        const int32_t exponent = (bits - 0x3f3504f3) >> 23;
        bits -= exponent * (1 << 23);
        float m;
        memcpy(&m, &bits, 4);
        const float t = (m - 1.0f) / (m + 1.0f), t2 = t * t;
        const float series = t * (2.0f + t2 * (0.6666667f + t2 * (0.4f + t2 * (0.2857143f + t2 * 0.2222222f))));
        const float log_u = (float)exponent * 0.69314718f + series;
        const float square = -2.0f * log_u;
        const float radius = __builtin_sqrtf(square > 0.0f ? square : 0.0f);
        /* angle = quarter turns + a rest in [-pi/4, pi/4], where short Taylor polynomials are enough. */
        const int32_t quarter = (int32_t)((uint32_t)angle[i] + 0x20000000u) >> 30;
        const float r = (float)(int32_t)((uint32_t)angle[i] - ((uint32_t)quarter << 30)) * 1.4629180793e-9f; /* pi / 2^31 */
        const float r2 = r * r;
        const float s = r * (1.0f + r2 * (-1.6666667e-1f + r2 * (8.3333333e-3f + r2 * (-1.9841270e-4f + r2 * 2.7557319e-6f))));
        const float c = 1.0f + r2 * (-0.5f + r2 * (4.1666667e-2f + r2 * (-1.3888889e-3f + r2 * 2.4801587e-5f)));
        const int odd = quarter & 1;
        const float cosine = odd ? s : c, sine = odd ? c : s;
        cosines[i] = radius * ((quarter + 1) & 2 ? -cosine : cosine);
        sines[i] = radius * (quarter & 2 ? -sine : sine);
    }
}

#undef DEFINE_TILE
#undef DEFINE_BLOCK
#undef DEFINE_SOFTMAX
#undef NAME
#undef TARGET
#undef LANES
#undef TALL_4
#undef TALL_2
#undef TALL_1
