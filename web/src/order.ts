/** Sorting rows by a number each, in time that grows with their count only. */

const DIGIT = 1 << 16;

/** Rows from the least value to the greatest; of equal ones the lower row first. */
export function ascending(values: Float32Array): Int32Array {
  const n = values.length;
  // A float's bits sort like its value once the sign is seen to.
  const keys = new Uint32Array(n);
  const bits = new Uint32Array(Float32Array.from(values, (value) => value + 0).buffer);
  for (let i = 0; i < n; i++) {
    const its = bits[i] ?? 0;
    keys[i] = its & 0x80000000 ? ~its : its | 0x80000000;
  }
  let from = Int32Array.from({ length: n }, (_, i) => i);
  let to = new Int32Array(n);
  for (const shift of [0, 16]) {
    const starts = new Int32Array(DIGIT + 1);
    for (let i = 0; i < n; i++) {
      const digit = ((keys[i] ?? 0) >>> shift) & (DIGIT - 1);
      starts[digit + 1] = (starts[digit + 1] ?? 0) + 1;
    }
    for (let digit = 0; digit < DIGIT; digit++) starts[digit + 1] = (starts[digit + 1] ?? 0) + (starts[digit] ?? 0);
    for (let i = 0; i < n; i++) {
      const row = from[i] ?? 0;
      const digit = ((keys[row] ?? 0) >>> shift) & (DIGIT - 1);
      const at = starts[digit] ?? 0;
      starts[digit] = at + 1;
      to[at] = row;
    }
    [from, to] = [to, from];
  }
  return from;
}

/** Rows from the greatest value to the least; of equal ones the lower row first. */
export function descending(values: Float32Array): Int32Array {
  return ascending(values.map((value) => -value));
}
