/* The convolution and the scan of a Mamba-2 mixer, forwards and backwards, for training on one CPU thread.
   Rows are (B, T, W + 2HN): the input x of H heads of P, then B and C of N each. N and P are given by -D. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define K 4 /* taps of the convolution */

void conv_forward(const float *x, const float *w, const float *bias, float *pre, float *out, long rows, long T, long C) {
  for (long b = 0; b < rows; b++)
    for (long t = 0; t < T; t++) {
      float *s = pre + (b * T + t) * C, *o = out + (b * T + t) * C;
      memcpy(s, bias, C * sizeof(float));
      for (long k = 0; k < K; k++) {
        if (t - K + 1 + k < 0) continue;
        const float *from = x + (b * T + t - K + 1 + k) * C, *tap = w + k * C;
        for (long c = 0; c < C; c++) s[c] += from[c] * tap[c];
      }
      for (long c = 0; c < C; c++) o[c] = s[c] / (1 + expf(-s[c]));
    }
}

/* gw (K, C) and gb (C) are added to; g is overwritten by the gradient before SiLU. */
void conv_backward(const float *x, const float *w, const float *pre, float *g, float *gx, float *gw, float *gb, long rows,
                   long T, long C) {
  for (long i = 0; i < rows * T * C; i++) {
    float s = 1 / (1 + expf(-pre[i]));
    g[i] *= s * (1 + pre[i] * (1 - s));
  }
  memset(gx, 0, rows * T * C * sizeof(float));
  for (long b = 0; b < rows; b++)
    for (long t = 0; t < T; t++) {
      const float *d = g + (b * T + t) * C;
      for (long c = 0; c < C; c++) gb[c] += d[c];
      for (long k = 0; k < K; k++) {
        if (t - K + 1 + k < 0) continue;
        long at = (b * T + t - K + 1 + k) * C;
        for (long c = 0; c < C; c++) gx[at + c] += d[c] * w[k * C + c];
        for (long c = 0; c < C; c++) gw[k * C + c] += d[c] * x[at + c];
      }
    }
}

/* y_t = C_t S_t + D x_t with S_t = exp(a dt_t) S_{t-1} + dt_t B_t x_t; S (N, P). */
void scan_forward(const float *u, const float *dt, const float *a, const float *D, float *y, long rows, long T, long H) {
  long W = H * P, C = W + 2 * H * N;
  for (long b = 0; b < rows; b++)
    for (long h = 0; h < H; h++) {
      float S[N][P] = {{0}};
      for (long t = 0; t < T; t++) {
        const float *x = u + (b * T + t) * C + h * P, *B = u + (b * T + t) * C + W + h * N, *c = B + H * N;
        float d = dt[(b * T + t) * H + h], keep = expf(a[h] * d), o[P];
        for (long p = 0; p < P; p++) o[p] = D[h] * x[p];
        for (long n = 0; n < N; n++) {
          float in = d * B[n], read = c[n];
          for (long p = 0; p < P; p++) {
            S[n][p] = keep * S[n][p] + in * x[p];
            o[p] += read * S[n][p];
          }
        }
        memcpy(y + (b * T + t) * W + h * P, o, sizeof o);
      }
    }
}

/* Gradients gu, gdt of all inputs, and ga, gD (H), which are added to. The states are computed a second time. */
void scan_backward(const float *u, const float *dt, const float *a, const float *D, const float *gy, float *gu, float *gdt,
                   float *ga, float *gD, long rows, long T, long H) {
  long W = H * P, C = W + 2 * H * N;
  float(*S)[N][P] = malloc((T + 1) * sizeof *S); /* S[t]: the state before position t */
  for (long b = 0; b < rows; b++)
    for (long h = 0; h < H; h++) {
      memset(S[0], 0, sizeof *S);
      for (long t = 0; t < T; t++) {
        const float *x = u + (b * T + t) * C + h * P, *B = u + (b * T + t) * C + W + h * N;
        float d = dt[(b * T + t) * H + h], keep = expf(a[h] * d);
        for (long n = 0; n < N; n++)
          for (long p = 0; p < P; p++) S[t + 1][n][p] = keep * S[t][n][p] + d * B[n] * x[p];
      }
      float G[N][P] = {{0}}, later = 0; /* gradient of the state; the decay after this position */
      for (long t = T - 1; t >= 0; t--) {
        long at = (b * T + t) * C;
        const float *x = u + at + h * P, *B = u + at + W + h * N, *c = B + H * N, *g = gy + (b * T + t) * W + h * P;
        float *gx = gu + at + h * P, *gB = gu + at + W + h * N, *gc = gB + H * N;
        float d = dt[(b * T + t) * H + h], keep = expf(a[h] * d), gkeep = 0, gd = 0, xg = 0, o[P];
        for (long p = 0; p < P; p++) {
          o[p] = D[h] * g[p];
          xg += x[p] * g[p];
        }
        for (long n = 0; n < N; n++) {
          float read = c[n], in = d * B[n], q = 0, r = 0, s = 0;
          for (long p = 0; p < P; p++) {
            float v = later * G[n][p] + read * g[p];
            G[n][p] = v;
            q += S[t + 1][n][p] * g[p];
            r += v * x[p];
            s += v * S[t][n][p];
            o[p] += in * v;
          }
          gc[n] = q;
          gB[n] = d * r;
          gd += B[n] * r;
          gkeep += s;
        }
        memcpy(gx, o, sizeof o);
        gdt[(b * T + t) * H + h] = gd + a[h] * keep * gkeep;
        ga[h] += d * keep * gkeep;
        gD[h] += xg;
        later = keep;
      }
    }
  free(S);
}
