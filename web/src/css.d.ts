/** Vite takes stylesheets as imports. */
declare module "*.css";
