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

/** `rows` by group, a whole number below `groups`; the order inside a group stays. */
export function groupStable(rows: Int32Array, group: Int16Array, groups: number): Int32Array {
  const starts = new Int32Array(groups + 1);
  for (const row of rows) (starts[(group[row] as number) + 1] as number) += 1;
  for (let its = 0; its < groups; its++) (starts[its + 1] as number) += starts[its] as number;
  const out = new Int32Array(rows.length);
  for (const row of rows) {
    const its = group[row] as number;
    out[starts[its] as number] = row;
    (starts[its] as number) += 1;
  }
  return out;
}

/** 0, 1, … n - 1. */
export function range(n: number): Int32Array<ArrayBuffer> {
  return new Int32Array(n).map((_, row) => row);
}

export interface Group {
  label: number;
  /** The label around the samples. */
  other: number;
  start: number;
  count: number;
}

/**
 * `rows` by label and by the label around them; the order inside a group stays. Groups with two
 * different labels come first, the largest first.
 */
export function groupByLabels(rows: Int32Array, label: Int16Array, around: Int16Array): { rows: Int32Array; groups: Group[] } {
  const groupByKey = new Map<number, Group>();
  const groupOf = (row: number): Group => {
    const [own, other] = [label[row] ?? 0, around[row] ?? 0];
    const key = own * 65536 + other;
    let group = groupByKey.get(key);
    if (group === undefined) groupByKey.set(key, (group = { label: own, other, start: 0, count: 0 }));
    return group;
  };
  for (const row of rows) groupOf(row).count++;
  const differs = (group: Group): number => Number(group.label !== group.other);
  const groups = [...groupByKey.values()].sort(
    (a, b) => differs(b) - differs(a) || differs(a) * (b.count - a.count) || a.label - b.label || a.other - b.other,
  );
  let end = 0;
  for (const group of groups) {
    group.start = end;
    end += group.count;
    group.count = 0;
  }
  const out = new Int32Array(rows.length);
  for (const row of rows) {
    const group = groupOf(row);
    out[group.start + group.count++] = row;
  }
  return { rows: out, groups };
}
