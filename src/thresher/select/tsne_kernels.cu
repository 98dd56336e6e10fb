// A step of t-SNE's descent around two FFTs, as `repulsion.field` and `tsne._step` do it, without
// intermediate arrays. Sums have a fixed order, so the result is deterministic.

// Weights of the cubic B-spline at the four grid points around t in [0, 1).
static __device__ void weights(float t, float *w) {
    float u = 1.0f - t;
    w[0] = u * u * u / 6.0f;
    w[1] = (4.0f - 6.0f * t * t + 3.0f * t * t * t) / 6.0f;
    w[2] = (4.0f - 6.0f * u * u + 3.0f * u * u * u) / 6.0f;
    w[3] = t * t * t / 6.0f;
}

// Their derivatives.
static __device__ void slopes(float t, float *s) {
    float u = 1.0f - t;
    s[0] = -u * u / 2.0f;
    s[1] = (3.0f * t * t - 4.0f * t) / 2.0f;
    s[2] = (4.0f * u - 3.0f * u * u) / 2.0f;
    s[3] = t * t / 2.0f;
}

// Whether all four grid points around p are on the grid; a coordinate that is not finite has none.
static __device__ bool inside(float p, int size) { return p >= 1.0f && p < (float)(size - 2); }

// Add the charges of the n points y to a grid; a thread for each point.
extern "C" __global__ void spread_charges(const float *y, const float *origin,
                                          const float *spacing, unsigned long long *charge, int n,
                                          int size, float fixed_point) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float px = (y[2 * i] - origin[0]) / spacing[0], cx = floorf(px);
    float py = (y[2 * i + 1] - origin[1]) / spacing[0], cy = floorf(py);
    if (!inside(px, size) || !inside(py, size)) return;
    float wx[4], wy[4];
    weights(px - cx, wx);
    weights(py - cy, wy);
    int corner = ((int)cx - 1) * size + (int)cy - 1;
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++) {
            float amount = floorf(wx[a] * wy[b] * fixed_point + 0.5f);
            atomicAdd(charge + corner + a * size + b, (unsigned long long)amount);
        }
}

// Read force and phi of the n points y from the potential on the grid; a thread for each point.
extern "C" __global__ void read_field(const float *y, const float *origin, const float *spacing,
                                      const float *potential, float *force, float *phi, int n,
                                      int size) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float h = spacing[0];
    float px = (y[2 * i] - origin[0]) / h, cx = floorf(px);
    float py = (y[2 * i + 1] - origin[1]) / h, cy = floorf(py);
    if (!inside(px, size) || !inside(py, size)) {
        phi[i] = force[2 * i] = force[2 * i + 1] = nanf("");
        return;
    }
    float wx[4], wy[4], sx[4], sy[4];
    weights(px - cx, wx);
    weights(py - cy, wy);
    slopes(px - cx, sx);
    slopes(py - cy, sy);
    int corner = ((int)cx - 1) * size + (int)cy - 1;
    float total = 0.0f, dx = 0.0f, dy = 0.0f;
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++) {
            float value = potential[corner + a * size + b];
            total += value * wx[a] * wy[b];
            dx += value * sx[a] * wy[b];
            dy += value * wx[a] * sy[b];
        }
    phi[i] = total;
    force[2 * i] = dx * (-0.5f / h);
    force[2 * i + 1] = dy * (-0.5f / h);
}

// Update and gain of one coordinate.
static __device__ float updated(float update, float *gain, float gradient, float rate) {
    bool flipped = (update > 0.0f) != (gradient > 0.0f);
    *gain = flipped ? *gain + 0.2f : *gain * 0.8f + 0.01f;
    return 0.8f * update - rate * *gain * gradient;
}

static __device__ float sum_of_lanes(float value) {
    for (int apart = warpSize / 2; apart > 0; apart /= 2)
        value += __shfl_xor_sync(0xffffffff, value, apart);
    return value;
}

// Compute the n points after the step, `moved`; a warp for each point sums up its neighbours.
extern "C" __global__ void move_points(const float *y, float *moved, float *update, float *gains,
                                       const float *force, const long long *row_start,
                                       const int *column, const float *value,
                                       const float *exaggeration, const float *rate,
                                       const float *z, int n) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) / warpSize, lane = threadIdx.x % warpSize;
    if (i >= n) return;
    float x0 = y[2 * i], x1 = y[2 * i + 1], pull0 = 0.0f, pull1 = 0.0f;
    for (long long e = row_start[i] + lane; e < row_start[i + 1]; e += warpSize) {
        int j = column[e];
        float d0 = x0 - y[2 * j], d1 = x1 - y[2 * j + 1];
        float q = value[e] / (1.0f + d0 * d0 + d1 * d1);
        pull0 += q * d0;
        pull1 += q * d1;
    }
    pull0 = sum_of_lanes(pull0);
    pull1 = sum_of_lanes(pull1);
    if (lane != 0) return;
    float gain0 = gains[2 * i], gain1 = gains[2 * i + 1];
    float g0 = *exaggeration * pull0 - force[2 * i] / *z;
    float g1 = *exaggeration * pull1 - force[2 * i + 1] / *z;
    float u0 = updated(update[2 * i], &gain0, g0, *rate);
    float u1 = updated(update[2 * i + 1], &gain1, g1, *rate);
    float shorter = 5.0f / fmaxf(sqrtf(u0 * u0 + u1 * u1), 5.0f);
    update[2 * i] = u0 * shorter;
    update[2 * i + 1] = u1 * shorter;
    gains[2 * i] = gain0;
    gains[2 * i + 1] = gain1;
    moved[2 * i] = x0 + u0 * shorter;
    moved[2 * i + 1] = x1 + u1 * shorter;
}
