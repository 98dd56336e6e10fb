/** Sorting and grouping of rows in linear time. */

const DIGIT = 1 << 16;

/** Rows by ascending value; equal values by row. A radix sort: O(n). */
export function ascending(values: Float32Array): Int32Array {
  const n = values.length;
  const floats = new Float32Array(n);
  // Adding 0 turns -0 into 0, which has other bits.
  for (let i = 0; i < n; i++) floats[i] = (values[i] ?? 0) + 0;
  const keys = new Uint32Array(floats.buffer);
  // The bits of a float sort like its value once negative ones are inverted.
  for (let i = 0; i < n; i++) {
    const bits = keys[i] as number;
    keys[i] = bits & 0x80000000 ? ~bits : bits | 0x80000000;
  }
  let from = range(n);
  let to = new Int32Array(n);
  for (const shift of [0, 16]) {
    const starts = new Int32Array(DIGIT + 1);
    for (let i = 0; i < n; i++) (starts[(((keys[i] as number) >>> shift) & (DIGIT - 1)) + 1] as number) += 1;
    for (let digit = 0; digit < DIGIT; digit++) (starts[digit + 1] as number) += starts[digit] as number;
    for (let i = 0; i < n; i++) {
      const row = from[i] as number;
      const digit = ((keys[row] as number) >>> shift) & (DIGIT - 1);
      to[starts[digit] as number] = row;
      (starts[digit] as number) += 1;
    }
    [from, to] = [to, from];
  }
  return from;
}

/** Rows by descending value; equal values by row. */
export function descending(values: Float32Array): Int32Array {
  return ascending(values.map((value) => -value));
}

/** Values by key; keys in the order in which they first occur. */
export function groupBy(values: Iterable<number>, key: (value: number) => number): [number, number[]][] {
  const groups = new Map<number, number[]>();
  for (const value of values) {
    const its = key(value);
    const group = groups.get(its);
    if (group === undefined) groups.set(its, [value]);
    else group.push(value);
  }
  return [...groups];
}

/** `rows` by ascending group; the order inside a group stays. */
export function groupStable(rows: Int32Array, group: Int16Array): Int32Array {
  const parts = groupBy(rows, (row) => group[row] as number).sort(([a], [b]) => a - b);
  return Int32Array.from(parts.flatMap(([, members]) => members));
}

/** The smallest and the largest value; [Infinity, -Infinity] of none. */
export function extent(values: Float32Array): [low: number, high: number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** 0, 1, … n - 1. */
export function range(n: number): Int32Array<ArrayBuffer> {
  return new Int32Array(n).map((_, row) => row);
}

export interface Group {
  label: number;
  /** The label around the samples. */
  other: number;
  count: number;
}

/**
 * `rows` by label and by the label around them; the order inside a group stays. Groups with two
 * different labels come first, the largest first.
 */
export function groupByLabels(rows: Int32Array, label: Int16Array, around: Int16Array): { rows: Int32Array; groups: Group[] } {
  const byLabels = groupBy(rows, (row) => (label[row] ?? 0) * 65536 + (around[row] ?? 0));
  const groups = byLabels.map(([key, members]) => ({ label: key >> 16, other: key & 65535, count: members.length, members }));
  const differs = (group: Group): number => Number(group.label !== group.other);
  groups.sort((a, b) => differs(b) - differs(a) || differs(a) * (b.count - a.count) || a.label - b.label || a.other - b.other);
  return { rows: Int32Array.from(groups.flatMap((group) => group.members)), groups };
}
