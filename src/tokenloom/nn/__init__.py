"""Pure tensor modules: attention, masks, positions, the layer, the stack. No files, no globals, no modality."""
