/** Reading and writing Arrow tables. */

import type { Comparison, CopyLinks } from "./dataSource";
import { Field, RecordBatch, Schema, Struct, Table, Utf8, makeData, tableFromIPC, tableToIPC } from "apache-arrow";

export function read(bytes: ArrayBuffer): Table {
  return tableFromIPC(new Uint8Array(bytes));
}

/** The JSON that the server put into the schema's metadata. */
export function metadata<T>(table: Table): T {
  return JSON.parse(table.schema.metadata.get("thresher") ?? "{}") as T;
}

/** A boolean column, a bitmask in Arrow, as one byte per row. */
export function bytes(table: Table, name: string): Uint8Array {
  const out = new Uint8Array(table.numRows);
  let at = 0;
  for (const data of table.getChild(name)?.data ?? []) {
    const bits = data.values as Uint8Array;
    for (let i = 0; i < data.length; i++, at++) {
      const bit = i + data.offset;
      out[at] = ((bits[bit >> 3] ?? 0) >> (bit & 7)) & 1;
    }
  }
  return out;
}

type Numbers = Float32Array | Float64Array | Int16Array | Int32Array | Uint16Array;

/** A numeric column; null if the table has no such column. */
export function numbers<T extends Numbers>(table: Table, name: string): T | null {
  const column = table.getChild(name);
  return column === null ? null : (column.toArray() as T);
}

export function comparison(table: Table): Comparison {
  return { keep: bytes(table, "keep"), held: bytes(table, "held"), numbers: metadata(table) };
}

export function copyLinks(table: Table): CopyLinks {
  const column = <T extends Numbers>(name: string): T => table.getChild(name)?.toArray() as T;
  return { row: column("row"), other: column("other"), similarity: column("similarity"), ...metadata<Pick<CopyLinks, "measure" | "outside">>(table) };
}

/**
 * The body of `POST /api/overrides`. It is laid out by hand because Arrow's builders compile code
 * from strings, which the content policy forbids.
 */
export function encodeIds(ids: string[], details: unknown): Uint8Array {
  const encoder = new TextEncoder();
  const texts = ids.map((id) => encoder.encode(id));
  const valueOffsets = new Int32Array(ids.length + 1);
  texts.forEach((text, n) => (valueOffsets[n + 1] = (valueOffsets[n] ?? 0) + text.length));
  const data = new Uint8Array(valueOffsets[ids.length] ?? 0);
  texts.forEach((text, n) => data.set(text, valueOffsets[n] ?? 0));
  const column = makeData({ type: new Utf8(), length: ids.length, nullCount: 0, valueOffsets, data });
  const schema = new Schema([new Field("id", new Utf8(), false)], new Map([["thresher", JSON.stringify(details)]]));
  const struct = makeData({ type: new Struct(schema.fields), length: ids.length, nullCount: 0, children: [column] });
  return tableToIPC(new Table(schema, [new RecordBatch(schema, struct)]), "stream");
}
