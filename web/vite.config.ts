import { defineConfig, type Plugin } from "vite";

/**
 * regl makes its drawing procedures from text with `Function`, which a strict content policy
 * forbids. They are always the same for this page, so they are written down ahead of time
 * (`src/map/regl-procedures.js`, made by `tools/regl_procedures.py`) and looked up instead.
 */
function reglWithoutEval(): Plugin {
  const call = /Function\.apply\(null,\s*linkedNames\.concat\(src\)\)/;
  return {
    name: "regl-without-eval",
    enforce: "pre",
    transform(code, id) {
      if (!id.endsWith("/regl.unchecked.js")) return null;
      if (!call.test(code)) throw new Error("regl has changed: its use of Function was not found");
      return { code: code.replace(call, "globalThis.reglProcedure(linkedNames, src)"), map: null };
    },
  };
}

export default defineConfig({
  base: "./",
  plugins: [reglWithoutEval()],
  resolve: {
    alias: [{ find: /^regl$/, replacement: new URL("node_modules/regl/dist/regl.unchecked.js", import.meta.url).pathname }],
  },
  build: {
    outDir: "../src/thresher/app/static",
    emptyOutDir: true,
    target: "es2022",
    // A data: address would need a looser content policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
    rolldownOptions: {
      output: {
        // Names without hashes: a rebuild changes contents, not the list of files.
        entryFileNames: "assets/page.js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/[name][extname]",
        codeSplitting: false,
      },
    },
  },
});
