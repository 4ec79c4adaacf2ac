data "aws_ec2_instance_type_offerings" "this" {
  for_each      = var.zone == "" && var.subnet_id == "" ? local.types : toset([])
  location_type = "availability-zone"

  filter {
    name   = "instance-type"
    values = [each.key]
  }
}

locals {
  # None are asked where the zone is given, and setintersection wants at least one.
  # Local Zones (us-west-2-lax-1a) and Wavelength Zones are among them where an account has opted in.
  offering = [
    for zone in try(sort(setintersection([for type in data.aws_ec2_instance_type_offerings.this : toset(type.locations)]...)), []) :
    zone if can(regex("^${var.region}[a-z]$", zone))
  ]
  zone = var.zone != "" ? var.zone : try(local.offering[0], "none")

  # A network of the cluster's own, or a subnet that somebody else keeps.
  own    = toset(var.subnet_id == "" ? ["own"] : [])
  nat    = toset(var.subnet_id == "" && var.private ? ["own"] : [])
  vpc_id = one(concat(values(aws_vpc.this)[*].id, values(data.aws_subnet.theirs)[*].vpc_id))

  # The workers' subnet, and the launcher's, which is another one where workers have no public addresses.
  subnet_id          = one(concat(values(var.private ? aws_subnet.private : aws_subnet.this)[*].id, values(data.aws_subnet.theirs)[*].id))
  launcher_subnet_id = var.subnet_id != "" ? coalesce(var.launcher_subnet_id, var.subnet_id) : local.hidden ? local.subnet_id : one(values(aws_subnet.this)[*].id)

  # An endpoint of the cluster's own; and whether the launcher, too, has no public address.
  endpoint = toset(var.instance_connect && length(var.endpoint_groups) == 0 ? ["own"] : [])
  hidden   = var.instance_connect && var.private
}

data "aws_subnet" "theirs" {
  for_each = toset(compact([var.subnet_id]))
  id       = each.key
}

resource "aws_vpc" "this" {
  for_each   = local.own
  cidr_block = var.cidr
  tags       = { Name = var.cluster_id }
}

resource "aws_subnet" "this" {
  for_each          = local.own
  vpc_id            = aws_vpc.this[each.key].id
  cidr_block        = cidrsubnet(var.cidr, 4, 0)
  availability_zone = local.zone
  tags              = { Name = var.cluster_id }

  lifecycle {
    precondition {
      condition     = local.zone != "none"
      error_message = "No availability zone of ${var.region} offers all of ${join(", ", local.types)}."
    }
  }
}

resource "aws_internet_gateway" "this" {
  for_each = local.own
  vpc_id   = aws_vpc.this[each.key].id
  tags     = { Name = var.cluster_id }
}

resource "aws_route_table" "this" {
  for_each = local.own
  vpc_id   = aws_vpc.this[each.key].id
  tags     = { Name = var.cluster_id }

  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.this[each.key].id
  }
}

resource "aws_route_table_association" "this" {
  for_each       = local.own
  subnet_id      = aws_subnet.this[each.key].id
  route_table_id = aws_route_table.this[each.key].id
}

# Workers without public addresses fetch packages and images through a NAT gateway.
resource "aws_subnet" "private" {
  for_each          = local.nat
  vpc_id            = aws_vpc.this[each.key].id
  cidr_block        = cidrsubnet(var.cidr, 4, 1)
  availability_zone = local.zone
  tags              = { Name = "${var.cluster_id}-private" }
}

resource "aws_eip" "nat" {
  for_each   = local.nat
  domain     = "vpc"
  tags       = { Name = "${var.cluster_id}-nat" }
  depends_on = [aws_internet_gateway.this]
}

resource "aws_nat_gateway" "this" {
  for_each      = local.nat
  allocation_id = aws_eip.nat[each.key].id
  subnet_id     = aws_subnet.this[each.key].id
  tags          = { Name = var.cluster_id }
  depends_on    = [aws_route_table_association.this]
}

resource "aws_route_table" "private" {
  for_each = local.nat
  vpc_id   = aws_vpc.this[each.key].id
  tags     = { Name = "${var.cluster_id}-private" }

  route {
    cidr_block     = "0.0.0.0/0"
    nat_gateway_id = aws_nat_gateway.this[each.key].id
  }
}

resource "aws_route_table_association" "private" {
  for_each       = local.nat
  subnet_id      = aws_subnet.private[each.key].id
  route_table_id = aws_route_table.private[each.key].id
}

# SSH comes from where it is, and not from the client's address.
resource "aws_ec2_instance_connect_endpoint" "this" {
  for_each           = local.endpoint
  subnet_id          = local.launcher_subnet_id
  security_group_ids = [aws_security_group.endpoint[each.key].id]
  preserve_client_ip = false
  tags               = { Name = var.cluster_id }
}
