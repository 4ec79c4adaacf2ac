terraform {
  required_version = ">= 1.5, < 2.0"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.90, < 6.0"
    }
  }
}

provider "aws" {
  region = var.region

  # The default, 25, keeps asking for many minutes where a zone has no capacity.
  max_retries = var.max_retries

  default_tags {
    tags = local.all_tags
  }
}
