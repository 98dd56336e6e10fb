import { existsSync, readFileSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { defineConfig, type Plugin } from "vite";

/** Writes the licences of every package whose code is in the bundle to `assets/third-party-notices.txt`. */
function thirdPartyNotices(): Plugin {
  return {
    name: "third-party-notices",
    generateBundle(_, bundle) {
      const folders = new Set<string>();
      for (const chunk of Object.values(bundle)) {
        if (chunk.type !== "chunk") continue;
        for (const id of chunk.moduleIds) {
          const folder = packageFolder(id);
          if (folder !== null) folders.add(folder);
        }
      }
      const notices = [...folders].map(notice).sort();
      const head = "The page contains code of the following packages.\n";
      this.emitFile({ type: "asset", fileName: "assets/third-party-notices.txt", source: [head, ...notices].join("\n") });
    },
  };
}

/** The folder of the package that a module belongs to; null for our own modules. */
function packageFolder(id: string): string | null {
  if (!id.includes("/node_modules/")) return null;
  let folder = dirname(id);
  while (!existsSync(join(folder, "package.json")) || described(folder).name === undefined) folder = dirname(folder);
  return folder;
}

function described(folder: string): { name?: string; version?: string; license?: string } {
  return JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
}

function notice(folder: string): string {
  const { name, version, license } = described(folder);
  const files = readdirSync(folder).filter((file) => /^(licen[cs]e|copying|notice)/i.test(file)).sort();
  if (license === undefined && files.length === 0) throw new Error(`${name} states no licence`);
  const texts = files.map((file) => readFileSync(join(folder, file), "utf8").trim());
  return [`${"=".repeat(80)}\n${name} ${version}, ${license}`, ...texts].join("\n\n") + "\n";
}

export default defineConfig({
  base: "./",
  plugins: [thirdPartyNotices()],
  build: {
    outDir: "../src/thresher/app/static",
    emptyOutDir: true,
    target: "es2022",
    // A data: address would need a looser content policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
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
  test: { include: ["test/**/*.test.ts"] },
});
