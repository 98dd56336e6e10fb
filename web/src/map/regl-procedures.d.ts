/** Procedures that regl would make from text, by the hash of that text. */
export const procedures: Record<string, (...linked: never[]) => unknown>;
