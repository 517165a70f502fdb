"""What a person sees of profiles and plans."""
