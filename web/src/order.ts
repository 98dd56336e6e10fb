/** Sorting rows by a number each, in time that grows with their count only. */

const DIGIT = 1 << 16;

/** Rows from the least value to the greatest; of equal ones the lower row first. */
export function ascending(values: Float32Array): Int32Array {
  const n = values.length;
  // A float's bits sort like its value once the sign is seen to.
  const floats = new Float32Array(n);
  // Zero added: minus zero and zero are equal, but their bits are not.
  for (let i = 0; i < n; i++) floats[i] = (values[i] ?? 0) + 0;
  const keys = new Uint32Array(floats.buffer);
  for (let i = 0; i < n; i++) {
    const its = keys[i] ?? 0;
    keys[i] = its & 0x80000000 ? ~its : its | 0x80000000;
  }
  let from = everyone(n);
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

/** `rows` by a small whole number each, otherwise as they stand. */
export function grouped(rows: Int32Array, group: Int16Array, groups: number): Int32Array {
  const starts = new Int32Array(groups + 1);
  for (const row of rows) {
    const its = (group[row] ?? 0) + 1;
    starts[its] = (starts[its] ?? 0) + 1;
  }
  for (let its = 0; its < groups; its++) starts[its + 1] = (starts[its + 1] ?? 0) + (starts[its] ?? 0);
  const out = new Int32Array(rows.length);
  for (const row of rows) {
    const its = group[row] ?? 0;
    const at = starts[its] ?? 0;
    starts[its] = at + 1;
    out[at] = row;
  }
  return out;
}

/** All rows of `n`, as they stand. */
export function everyone(n: number): Int32Array<ArrayBuffer> {
  const rows = new Int32Array(n);
  for (let i = 0; i < n; i++) rows[i] = i;
  return rows;
}

export interface Group {
  /** Rows from `start` on, `count` of them. */
  start: number;
  count: number;
  label: number;
  place: number;
}

/**
 * `rows` by label and by the class that they lie among, otherwise as they stand. Groups that lie
 * among another class come first, the largest first; then those among their own.
 */
export function groupedByPlace(rows: Int32Array, label: Int16Array, place: Int16Array): { rows: Int32Array; groups: Group[] } {
  const groups = new Map<number, Group>();
  const groupOf = (row: number): Group => {
    const [its, among] = [label[row] ?? 0, place[row] ?? 0];
    const key = its * 65536 + among;
    let group = groups.get(key);
    if (group === undefined) groups.set(key, (group = { start: 0, count: 0, label: its, place: among }));
    return group;
  };
  for (const row of rows) groupOf(row).count++;
  const stranger = (group: Group): number => Number(group.label !== group.place);
  const order = [...groups.values()].sort(
    (a, b) => stranger(b) - stranger(a) || (stranger(a) ? b.count - a.count : 0) || a.label - b.label || a.place - b.place,
  );
  let end = 0;
  for (const group of order) {
    group.start = end;
    end += group.count;
    group.count = 0;
  }
  const out = new Int32Array(rows.length);
  for (const row of rows) {
    const group = groupOf(row);
    out[group.start + group.count++] = row;
  }
  return { rows: out, groups: order };
}
