/** Groups of near-copies: the samples that links connect. */

import type { CopyLinks } from "./dataSource";
import { groupBy } from "./sorting";

/** Test images with copies in training, copies under different labels, and other copies. */
export type CopyKind = "leakage" | "conflicts" | "duplicates";

export interface CopyGroup {
  kind: CopyKind;
  /** Images outside of the selection, then samples of it; both ascending. */
  rows: number[];
  /** Of its weakest link. */
  similarity: number;
}

/** The groups, most similar first; `label` has an entry per sample of the selection. */
export function groupCopies({ row, other, similarity }: CopyLinks, label: Int16Array): CopyGroup[] {
  const parent = new Map<number, number>();
  const root = (start: number): number => {
    let [at, above] = [start, parent.get(start) ?? start];
    while (at !== above) {
      const next = parent.get(above) ?? above;
      parent.set(at, next);
      [at, above] = [above, next];
    }
    return at;
  };
  row.forEach((a, link) => {
    const b = other[link] as number;
    for (const one of [a, b]) if (!parent.has(one)) parent.set(one, one);
    parent.set(root(b), root(a));
  });
  const weakest = new Map<number, number>();
  row.forEach((a, link) => weakest.set(root(a), Math.min(weakest.get(root(a)) ?? 1, similarity[link] as number)));
  const isOutside = (one: number): boolean => one >= label.length;
  const groups = groupBy(parent.keys(), root).map(([top, members]): CopyGroup => {
    const rows = members.sort((a, b) => Number(isOutside(b)) - Number(isOutside(a)) || a - b);
    const labels = new Set(rows.flatMap((one) => label[one] ?? []));
    const kind = rows.some(isOutside) ? "leakage" : labels.size > 1 ? "conflicts" : "duplicates";
    return { kind, rows, similarity: weakest.get(top) ?? 1 };
  });
  return groups.sort((a, b) => b.similarity - a.similarity || (a.rows.at(-1) ?? 0) - (b.rows.at(-1) ?? 0));
}
